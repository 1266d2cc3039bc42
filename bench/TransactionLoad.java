import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Small transactions of Java's producers, one thread each, for so many seconds; one line of JSON. */
public class TransactionLoad {
    public static void main(String[] args) throws Exception {
        String bootstrap = args[0];
        String topic = args[1];
        int producers = Integer.parseInt(args[2]);
        double warmSeconds = Double.parseDouble(args[3]);
        double seconds = Double.parseDouble(args[4]);
        List<Thread> threads = new ArrayList<>();
        List<long[]> took = new ArrayList<>();
        long measureFrom = System.nanoTime() + (long) (warmSeconds * 1e9);
        long end = measureFrom + (long) (seconds * 1e9);
        for (int number = 0; number < producers; number++) {
            String id = topic + "-" + number;
            Thread thread = new Thread(() -> {
                long[] mine = run(bootstrap, topic, id, measureFrom, end);
                synchronized (took) {
                    took.add(mine);
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        long[] all = took.stream().flatMapToLong(Arrays::stream).sorted().toArray();
        System.out.printf(
            "{\"transactions_per_second\": %.2f, \"p50_ms\": %.4f, \"p99_ms\": %.4f}%n",
            all.length / seconds, all[all.length / 2] / 1e6, all[all.length * 99 / 100] / 1e6);
    }

    /** How long the commits took that were made while it is measured. */
    private static long[] run(String bootstrap, String topic, String id, long measureFrom, long end) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", id);
        settings.put("linger.ms", "0");
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        List<Long> took = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            while (System.nanoTime() < end) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, new byte[100]));
                long began = System.nanoTime();
                producer.commitTransaction();
                long now = System.nanoTime();
                if (began >= measureFrom && now < end) {
                    took.add(now - began);
                }
            }
        }
        return took.stream().mapToLong(Long::longValue).toArray();
    }
}
