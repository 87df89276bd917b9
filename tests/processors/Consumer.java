import com.azure.core.amqp.AmqpTransportType;
import com.azure.messaging.eventhubs.EventProcessorClient;
import com.azure.messaging.eventhubs.EventProcessorClientBuilder;
import com.azure.messaging.eventhubs.LoadBalancingStrategy;
import com.azure.messaging.eventhubs.checkpointstore.blob.BlobCheckpointStore;
import com.azure.messaging.eventhubs.models.EventBatchContext;
import com.azure.messaging.eventhubs.models.EventPosition;
import com.azure.storage.blob.BlobContainerClientBuilder;
import com.azure.storage.common.StorageSharedKeyCredential;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.FileWriter;
import java.time.Duration;

/** An unmodified EventProcessorClient of the Java SDK: {@code java Consumer.java SETTINGS-AS-JSON}. As consumer.py. */
class Consumer {
    public static void main(String[] arguments) throws Exception {
        JsonNode settings = new ObjectMapper().readTree(arguments[0]);
        FileWriter seen = new FileWriter(settings.get("seen").asText(), true);
        EventProcessorClient client = new EventProcessorClientBuilder()
            .connectionString(settings.get("connection").asText())
            .transportType(AmqpTransportType.AMQP)
            .consumerGroup(settings.get("consumer_group").asText())
            .checkpointStore(new BlobCheckpointStore(new BlobContainerClientBuilder()
                .endpoint(settings.get("service").asText())
                .containerName(settings.get("container").asText())
                .credential(new StorageSharedKeyCredential(
                    settings.get("account").asText(), settings.get("key").asText()))
                .buildAsyncClient()))
            .loadBalancingStrategy(
                LoadBalancingStrategy.valueOf(settings.get("strategy").asText().toUpperCase()))
            .loadBalancingUpdateInterval(seconds(settings.get("interval")))
            .partitionOwnershipExpirationInterval(seconds(settings.get("expiry")))
            .initialPartitionEventPosition(partition -> EventPosition.earliest())
            .processEventBatch(batch -> process(batch, seen), 100, Duration.ofMillis(200))
            .processError(error -> System.err.println(
                error.getPartitionContext().getPartitionId() + " " + error.getThrowable()))
            .buildEventProcessorClient();
        client.start();
        System.in.readAllBytes();
        client.stop();
        System.exit(0);
    }

    private static void process(EventBatchContext batch, FileWriter seen) {
        if (batch.getEvents().isEmpty()) {
            return;
        }
        StringBuilder lines = new StringBuilder();
        batch.getEvents().forEach(each -> lines.append(batch.getPartitionContext().getPartitionId())
            .append(' ').append(each.getSequenceNumber()).append('\n'));
        try {
            synchronized (seen) {
                seen.write(lines.toString());
                seen.flush();
            }
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
        batch.updateCheckpoint();
    }

    private static Duration seconds(JsonNode value) {
        return Duration.ofMillis(Math.round(value.asDouble() * 1000));
    }
}
