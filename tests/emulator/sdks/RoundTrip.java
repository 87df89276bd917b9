import com.azure.messaging.eventhubs.EventData;
import com.azure.messaging.eventhubs.EventDataBatch;
import com.azure.messaging.eventhubs.EventHubClientBuilder;
import com.azure.messaging.eventhubs.EventHubConsumerAsyncClient;
import com.azure.messaging.eventhubs.EventHubProducerClient;
import com.azure.messaging.eventhubs.models.CreateBatchOptions;
import com.azure.messaging.eventhubs.models.PartitionEvent;
import com.azure.messaging.eventhubs.models.SendOptions;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;

/**
 * The Java SDK, unmodified: {@code java RoundTrip.java CONNECTION-STRING}. Sends an event with a key, one to a partition
 * and one with properties, and prints the body, partition, number, key and properties of each event that it reads back.
 */
class RoundTrip {
    public static void main(String[] arguments) throws Exception {
        EventHubClientBuilder builder = new EventHubClientBuilder().connectionString(arguments[0]).consumerGroup("$Default");
        try (EventHubProducerClient producer = builder.buildProducerClient()) {
            producer.send(List.of(new EventData("to a key")), new SendOptions().setPartitionKey("ann"));
            producer.send(List.of(new EventData("to a partition")), new SendOptions().setPartitionId("3"));
            EventDataBatch batch = producer.createBatch(new CreateBatchOptions().setPartitionId("3"));
            EventData event = new EventData("with properties").setMessageId("id-1").setContentType("text/plain");
            event.getProperties().put("text", "ä");
            event.getProperties().put("number", 7);
            event.getProperties().put("yes", true);
            batch.tryAdd(event);
            producer.send(batch);
        }
        try (EventHubConsumerAsyncClient consumer = builder.buildAsyncConsumerClient()) {
            Object[] rows = consumer.receive(true).take(3).map(RoundTrip::row)
                .collectList().block(Duration.ofSeconds(60)).toArray();
            System.out.write(new ObjectMapper().writeValueAsBytes(rows));
            System.out.flush();
        }
        System.exit(0);
    }

    private static List<Object> row(PartitionEvent read) {
        EventData event = read.getData();
        return Arrays.asList(
            event.getBodyAsString(), read.getPartitionContext().getPartitionId(), event.getSequenceNumber(),
            event.getPartitionKey(), event.getProperties());
    }
}
