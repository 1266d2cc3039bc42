import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/**
 * Kafka Streams' hello: words of one topic counted into another. Says its state and tasks, ends with its input.
 * Arguments: bootstrap, application, source, target, state directory, and a processing guarantee if not the default.
 */
public class WordCount {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[4]);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, "100");
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, "0");
        settings.put("session.timeout.ms", "6000");
        settings.put("heartbeat.interval.ms", "300");
        if (args.length > 5) {
            settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, args[5]);
            // What a killed instance left open keeps readers waiting for so long.
            settings.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), "3000");
        }
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(args[2], Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts")).withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
            .toStream()
            .mapValues(String::valueOf)
            .to(args[3], Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setStateListener((now, before) -> System.out.println("{\"state\": \"" + now + "\"}"));
        streams.start();
        Thread reporter = new Thread(() -> report(streams));
        reporter.setDaemon(true);
        reporter.start();
        while (System.in.read() >= 0) {
            // nothing is said here
        }
        streams.close(Duration.ofSeconds(20));
    }

    private static void report(KafkaStreams streams) {
        int last = -1;
        try {
            while (true) {
                int tasks = streams.metadataForLocalThreads().stream().mapToInt(each -> each.activeTasks().size()).sum();
                if (tasks != last) {
                    last = tasks;
                    System.out.println("{\"assigned\": [" + tasks + "]}");
                    System.out.flush();
                }
                Thread.sleep(50);
            }
        } catch (InterruptedException over) {
            Thread.currentThread().interrupt();
        }
    }
}
