/* Bulk load and end-to-end latency through librdkafka.
 *
 *   rdload produce BROKER TOPIC RECORDS RECORD_BYTES [PARTITIONS]      batches of 1 MB
 *   rdload consume BROKER TOPIC RECORDS                    from the beginning of partition 0
 *   rdload latency BROKER TOPIC RECORDS RECORD_BYTES RATE [LINGER_MS]  produce to consume, one record at a time
 *   rdload commit  BROKER TOPIC CONSUMERS SECONDS         each consumer commits one offset after the other
 *
 * Prints one line of JSON.
 */
#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { POOL = 1024, SECONDS_MAX = 120 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void set(rd_kafka_conf_t *conf, const char *key, const char *value) {
    char error[256];
    if (rd_kafka_conf_set(conf, key, value, error, sizeof error)) {
        fprintf(stderr, "%s\n", error);
        exit(1);
    }
}

/* Arguments of the form key=value: settings of the client. */
static char **options;

static rd_kafka_t *make(rd_kafka_type_t type, rd_kafka_conf_t *conf, const char *broker) {
    char error[512];
    set(conf, "bootstrap.servers", broker);
    for (char **option = options; *option; option++) {
        char *value = strchr(*option, '=');
        if (!value) continue;
        *value = 0;
        set(conf, *option, value + 1);
        *value = '=';
    }
    rd_kafka_t *client = rd_kafka_new(type, conf, error, sizeof error);
    if (!client) {
        fprintf(stderr, "%s\n", error);
        exit(1);
    }
    return client;
}

static long delivered, failed;

static void on_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client;
    (void)opaque;
    if (message->err) failed++;
    else delivered++;
}

/* Records that look like small JSON documents, so that nothing is unusually regular. */
static char *make_pool(size_t size) {
    char *pool = malloc(size * POOL + 256);
    unsigned s = 12345;
    for (int i = 0; i < POOL; i++) {
        char *record = pool + (size_t)i * size;
        for (size_t n = 0; n < size;) {
            char text[160];
            s = s * 1103515245u + 12345u;
            int k = snprintf(text, sizeof text, "{\"id\":%u,\"user\":\"user-%u\",\"amount\":%u.%02u,\"region\":\"eu-%u\"},",
                             s >> 8, (s >> 12) % 5000, (s >> 16) % 1000, (s >> 9) % 100, (s >> 20) % 4);
            size_t take = (size_t)k > size - n ? size - n : (size_t)k;
            memcpy(record + n, text, take);
            n += take;
        }
    }
    return pool;
}

static rd_kafka_t *make_producer(const char *broker, const char *linger) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    set(conf, "batch.size", "1000000");
    set(conf, "linger.ms", linger);
    set(conf, "acks", "all");
    set(conf, "queue.buffering.max.messages", "1000000");
    set(conf, "queue.buffering.max.kbytes", "1000000");
    return make(RD_KAFKA_PRODUCER, conf, broker);
}

static int produce(char **argv) {
    long records = atol(argv[4]);
    size_t size = (size_t)atol(argv[5]);
    char *pool = make_pool(size);
    // A setting may stand there too, see `options`.
    int32_t partitions = argv[6] && !strchr(argv[6], '=') ? atoi(argv[6]) : 1;
    rd_kafka_t *client = make_producer(argv[2], "5");
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, argv[3], 0);
    for (int32_t i = 0; i < partitions; i++) rd_kafka_produce(topic, i, 0, pool, size, 0, 0, 0);
    rd_kafka_flush(client, 10000);
    delivered = 0;
    double begun = now();
    for (long i = 0; i < records; i++) {
        while (rd_kafka_produce(topic, (int32_t)(i % partitions), 0, pool + (size_t)(i % POOL) * size, size, 0, 0, 0)) rd_kafka_poll(client, 50);
        if (i % 256 == 0) rd_kafka_poll(client, 0);
    }
    rd_kafka_flush(client, SECONDS_MAX * 1000);
    double took = now() - begun;
    printf("{\"records\":%ld,\"failed\":%ld,\"seconds\":%.3f,\"mb_per_second\":%.1f}\n", delivered, failed, took,
           (double)delivered * (double)size / took / 1e6);
    return failed || delivered != records;
}

static rd_kafka_t *make_consumer(const char *broker, const char *topic, int64_t offset) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "group.id", "bench");
    set(conf, "enable.auto.commit", "false");
    set(conf, "fetch.wait.max.ms", "100");
    set(conf, "fetch.message.max.bytes", "1048576");
    rd_kafka_t *client = make(RD_KAFKA_CONSUMER, conf, broker);
    rd_kafka_poll_set_consumer(client);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, topic, 0)->offset = offset;
    rd_kafka_assign(client, list);
    return client;
}

static int consume(char **argv) {
    long records = atol(argv[4]), got = 0;
    double bytes = 0, begun = 0, deadline = now() + SECONDS_MAX;
    rd_kafka_t *client = make_consumer(argv[2], argv[3], 0);
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(client);
    static rd_kafka_message_t *messages[1000];
    while (got < records && now() < deadline) {
        ssize_t count = rd_kafka_consume_batch_queue(queue, 1000, messages, 1000);
        if (count > 0 && begun == 0) begun = now();
        for (ssize_t i = 0; i < count; i++) {
            if (!messages[i]->err) {
                got++;
                bytes += (double)messages[i]->len;
            }
            rd_kafka_message_destroy(messages[i]);
        }
    }
    double took = now() - begun;
    printf("{\"records\":%ld,\"seconds\":%.3f,\"mb_per_second\":%.1f}\n", got, took, bytes / took / 1e6);
    fflush(stdout);
    _exit(got < records);
}

/* -- latency ---------------------------------------------------------------------------------------------------- */

static rd_kafka_t *reader;
static double *latencies;
static long wanted;
static volatile long seen;

static void *read_all(void *unused) {
    (void)unused;
    double deadline = now() + SECONDS_MAX;
    while (seen < wanted && now() < deadline) {
        rd_kafka_message_t *message = rd_kafka_consumer_poll(reader, 100);
        if (!message) continue;
        if (!message->err && message->len >= sizeof(double)) {
            double sent;
            memcpy(&sent, message->payload, sizeof sent);
            latencies[seen] = now() - sent;
            seen++;
        }
        rd_kafka_message_destroy(message);
    }
    return 0;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int latency(char **argv) {
    wanted = atol(argv[4]);
    size_t size = (size_t)atol(argv[5]);
    double rate = atof(argv[6]);
    latencies = malloc(sizeof *latencies * (size_t)(wanted + 1));
    char *record = make_pool(size);
    rd_kafka_t *client = make_producer(argv[2], argv[7] ? argv[7] : "0");
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, argv[3], 0);
    reader = make_consumer(argv[2], argv[3], RD_KAFKA_OFFSET_END);
    for (int i = 0; i < 15; i++) { /* until it follows the end of the partition */
        rd_kafka_message_t *message = rd_kafka_consumer_poll(reader, 100);
        if (message) rd_kafka_message_destroy(message);
    }
    pthread_t thread;
    pthread_create(&thread, 0, read_all, 0);
    double begun = now();
    for (long i = 0; i < wanted; i++) {
        double due = begun + (double)i / rate, left;
        while ((left = due - now()) > 0)
            if (left > 3e-4) usleep((useconds_t)((left - 1.5e-4) * 1e6));
        double sent = now();
        memcpy(record, &sent, sizeof sent);
        rd_kafka_produce(topic, 0, RD_KAFKA_MSG_F_COPY, record, size, 0, 0, 0);
        rd_kafka_poll(client, 0);
    }
    rd_kafka_flush(client, 10000);
    pthread_join(thread, 0);
    qsort(latencies, (size_t)seen, sizeof *latencies, by_value);
    printf("{\"records\":%ld,\"p50_us\":%.0f,\"p99_us\":%.0f}\n", seen, latencies[seen / 2] * 1e6,
           latencies[(long)((double)seen * .99)] * 1e6);
    fflush(stdout);
    _exit(seen < wanted);
}

/* -- commits ---------------------------------------------------------------------------------------------------- */

struct committer {
    pthread_t thread;
    rd_kafka_t *client;
    const char *topic;
    double until;
    long commits, failures;
    double *took;
};

enum { COMMITS_MAX = 1000000 };

static rd_kafka_resp_err_t commit_one(struct committer *me, int64_t offset) {
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, me->topic, 0)->offset = offset;
    rd_kafka_resp_err_t error = rd_kafka_commit(me->client, list, 0);
    rd_kafka_topic_partition_list_destroy(list);
    return error;
}

static void *commit_all(void *opaque) {
    struct committer *me = opaque;
    while (now() < me->until && me->commits < COMMITS_MAX) {
        double begun = now();
        if (commit_one(me, me->commits)) me->failures++;
        me->took[me->commits++] = now() - begun;
    }
    return 0;
}

static int commit(char **argv) {
    int consumers = atoi(argv[4]);
    double seconds = atof(argv[5]);
    struct committer *all = calloc((size_t)consumers, sizeof *all);
    for (int i = 0; i < consumers; i++) {
        char group[64];
        snprintf(group, sizeof group, "committer-%d", i);
        rd_kafka_conf_t *conf = rd_kafka_conf_new();
        set(conf, "group.id", group);
        set(conf, "enable.auto.commit", "false");
        all[i].client = make(RD_KAFKA_CONSUMER, conf, argv[2]);
        all[i].topic = argv[3];
        all[i].took = malloc(sizeof(double) * COMMITS_MAX);
        double patience = now() + SECONDS_MAX;
        while (commit_one(&all[i], 0) && now() < patience) usleep(10000);
    }
    double begun = now();
    for (int i = 0; i < consumers; i++) {
        all[i].until = begun + seconds;
        pthread_create(&all[i].thread, 0, commit_all, &all[i]);
    }
    long commits = 0, failures = 0;
    for (int i = 0; i < consumers; i++) {
        pthread_join(all[i].thread, 0);
        commits += all[i].commits;
        failures += all[i].failures;
    }
    double took = now() - begun;
    qsort(all[0].took, (size_t)all[0].commits, sizeof(double), by_value);
    printf("{\"commits_per_second\":%.0f,\"failed\":%ld,\"p50_us\":%.0f}\n", (double)commits / took, failures,
           all[0].took[all[0].commits / 2] * 1e6);
    fflush(stdout);
    _exit(failures != 0);
}

int main(int argc, char **argv) {
    options = argv;
    if (argc >= 6 && !strcmp(argv[1], "produce")) return produce(argv);
    if (argc >= 5 && !strcmp(argv[1], "consume")) return consume(argv);
    if (argc >= 7 && !strcmp(argv[1], "latency")) return latency(argv);
    if (argc >= 6 && !strcmp(argv[1], "commit")) return commit(argv);
    fprintf(stderr, "usage: rdload produce|consume|latency|commit BROKER TOPIC ... [key=value ...]\n");
    return 2;
}
