// The JavaScript SDK, unmodified: `node round_trip.cjs CONNECTION-STRING FOLDER-WITH-node_modules`. As RoundTrip.java.
"use strict";
const { createRequire } = require("node:module");

const [connection, modules] = process.argv.slice(2);
const installed = createRequire(modules + "/");
const { EventHubConsumerClient, EventHubProducerClient, earliestEventPosition } = installed("@azure/event-hubs");

async function send() {
  const producer = new EventHubProducerClient(connection);
  await producer.sendBatch([{ body: Buffer.from("to a key") }], { partitionKey: "ann" });
  await producer.sendBatch([{ body: Buffer.from("to a partition") }], { partitionId: "3" });
  const batch = await producer.createBatch({ partitionId: "3" });
  const properties = { text: "ä", number: 7, yes: true };
  batch.tryAdd({ body: Buffer.from("with properties"), properties, messageId: "id-1", contentType: "text/plain" });
  await producer.sendBatch(batch);
  await producer.close();
}

function readBack(count) {
  const consumer = new EventHubConsumerClient("$Default", connection);
  return new Promise((resolve, reject) => {
    const rows = [];
    const subscription = consumer.subscribe(
      {
        async processEvents(events, context) {
          rows.push(...events.map((event) => row(event, context.partitionId)));
          if (rows.length === count) subscription.close().then(() => consumer.close()).then(() => resolve(rows));
        },
        async processError(error) {
          reject(error);
        },
      },
      { startPosition: earliestEventPosition, maxWaitTimeInSeconds: 0.2 },
    );
  });
}

function row(event, partition) {
  const { partitionKey, sequenceNumber, properties } = event;
  return [event.body.toString(), partition, sequenceNumber, partitionKey ?? null, properties ?? {}];
}

send()
  .then(() => readBack(3))
  .then((rows) => console.log(JSON.stringify(rows)) ?? process.exit());
