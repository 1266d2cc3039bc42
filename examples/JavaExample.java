// Kafka's Java client: produce, then read the partition from the start.

import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class JavaExample {
    static final String TOPIC = "java-example";
    static final int COUNT = 10;

    public static void main(String[] args) throws Exception {
        String bootstrap = args.length > 0 ? args[0] : System.getenv().getOrDefault("MOLDAU_BOOTSTRAP", "127.0.0.1:9092");
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap);

        try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < COUNT; number++) {
                var sent = producer.send(new ProducerRecord<>(TOPIC, 0, "key-" + number, "hello " + number));
                System.out.println("delivered to offset " + sent.get().offset());
            }
        }

        var where = new TopicPartition(TOPIC, 0);
        try (var consumer = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(List.of(where));
            consumer.seekToBeginning(List.of(where));
            long end = consumer.endOffsets(List.of(where)).get(where);
            while (consumer.position(where) < end) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    System.out.println("read " + record.offset() + ": " + record.value());
                }
            }
        }
    }
}
