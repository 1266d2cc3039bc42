import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;

/**
 * Records per key and minute, by Kafka Streams with two threads and its own defaults, from one topic into another. One
 * line of JSON: the seconds between the first record and the last. Arguments: bootstrap, source, target, records, state
 * directory.
 */
public class WindowedCount {
    public static void main(String[] args) throws Exception {
        long expected = Long.parseLong(args[3]);
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[2]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[4]);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, "2");
        settings.put("auto.offset.reset", "earliest");
        AtomicLong seen = new AtomicLong();
        AtomicLong began = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(args[1], Consumed.with(Serdes.String(), Serdes.ByteArray()))
            .peek((key, value) -> {
                long number = seen.incrementAndGet();
                if (number == 1) {
                    began.set(System.nanoTime());
                } else if (number == expected) {
                    done.countDown();
                }
            })
            .groupByKey()
            .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMinutes(1), Duration.ofMinutes(1)))
            .count()
            .toStream((window, count) -> window.key() + "@" + window.window().start())
            .to(args[2], Produced.with(Serdes.String(), Serdes.Long()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.start();
        boolean isDone = done.await(10, TimeUnit.MINUTES);
        double seconds = (System.nanoTime() - began.get()) / 1e9;
        streams.close(Duration.ofSeconds(30));
        if (!isDone) {
            throw new IllegalStateException(seen.get() + " of " + expected + " records in ten minutes");
        }
        System.out.printf("{\"rows\": %d, \"seconds\": %.3f}%n", expected, seconds);
    }
}
