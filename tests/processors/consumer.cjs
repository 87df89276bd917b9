// An unmodified EventHubConsumerClient of the JavaScript SDK: `node consumer.cjs SETTINGS-AS-JSON`. As consumer.py.
"use strict";
const { appendFileSync } = require("node:fs");
const { createRequire } = require("node:module");

const settings = JSON.parse(process.argv[2]);
const installed = createRequire(settings.modules + "/");
const { EventHubConsumerClient, earliestEventPosition } = installed("@azure/event-hubs");
const { BlobCheckpointStore } = installed("@azure/eventhubs-checkpointstore-blob");
const { ContainerClient, StorageSharedKeyCredential } = installed("@azure/storage-blob");

const account = new StorageSharedKeyCredential(settings.account, settings.key);
const container = new ContainerClient(`${settings.service}/${settings.container}`, account);
const client = new EventHubConsumerClient(
  settings.consumer_group,
  settings.connection,
  new BlobCheckpointStore(container),
  {
    loadBalancingOptions: {
      strategy: settings.strategy,
      updateIntervalInMs: settings.interval * 1000,
      partitionOwnershipExpirationIntervalInMs: settings.expiry * 1000,
    },
  },
);
const handlers = {
  async processEvents(events, context) {
    if (events.length === 0) return;
    appendFileSync(settings.seen, events.map((each) => `${context.partitionId} ${each.sequenceNumber}\n`).join(""));
    await context.updateCheckpoint(events[events.length - 1]);
  },
  async processError(error, context) {
    console.error(context.partitionId, error.message);
  },
};
const subscription = client.subscribe(handlers, {
  startPosition: earliestEventPosition,
  maxWaitTimeInSeconds: 0.2,
});
process.stdin.resume().on("end", async () => {
  await subscription.close();
  await client.close();
  process.exit(); // the SDK leaves a timer behind if it was disconnected while events were processed
});
