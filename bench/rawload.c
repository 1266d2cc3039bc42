/* Raw frames over many connections, to get past any client's own ceiling.
 *
 *   rawload produce  PORT TOPIC CONNECTIONS IN_FLIGHT REQUESTS RECORD_BYTES [RATE]
 *   rawload commit   PORT TOPIC CONNECTIONS REQUESTS   each connection is a group that commits one offset after the other
 *   rawload connect  PORT CONNECTIONS            open all at once, ask ApiVersions on each, wait for every answer
 *   rawload idle     PORT CONNECTIONS            open, print "open", hold until standard input ends
 *
 * Produce and commit are version 9, with one record or one offset per request. Prints one line of JSON.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nmmintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { WINDOW_MAX = 64, ANSWER_BYTES_MAX = 4096, SECONDS_MAX = 120 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

/* -- writing numbers ------------------------------------------------------------------------------------------- */

static uint8_t *put8(uint8_t *p, int v) { *p = (uint8_t)v; return p + 1; }
static uint8_t *put16(uint8_t *p, int v) { p[0] = (uint8_t)(v >> 8); p[1] = (uint8_t)v; return p + 2; }
static uint8_t *put32(uint8_t *p, uint32_t v) { p = put16(p, (int)(v >> 16)); return put16(p, (int)(v & 0xffff)); }
static uint8_t *put64(uint8_t *p, uint64_t v) { p = put32(p, (uint32_t)(v >> 32)); return put32(p, (uint32_t)v); }
static uint8_t *put_varint(uint8_t *p, uint64_t v) {
    for (; v >= 128; v >>= 7) *p++ = (uint8_t)(v | 128);
    return put8(p, (int)v);
}
static uint32_t get32(const uint8_t *p) { return (uint32_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3]; }

static uint32_t crc32c(const uint8_t *p, size_t n) {
    uint64_t c = 0xffffffff;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        c = _mm_crc32_u64(c, v);
    }
    while (n--) c = _mm_crc32_u8((uint32_t)c, *p++);
    return (uint32_t)c ^ 0xffffffff;
}

/* -- the request ------------------------------------------------------------------------------------------------ */

static size_t build_batch(uint8_t *batch, int record_bytes) {
    uint8_t head[32], *h = head;
    h = put8(h, 0);                                    /* attributes */
    h = put_varint(h, 0);                              /* timestamp delta */
    h = put_varint(h, 0);                              /* offset delta */
    h = put_varint(h, 1);                              /* no key */
    h = put_varint(h, (uint64_t)record_bytes << 1);    /* value's length */
    size_t head_bytes = (size_t)(h - head);
    uint8_t *p = put_varint(batch + 61, (head_bytes + (size_t)record_bytes + 1) << 1);
    memcpy(p, head, head_bytes);
    p += head_bytes;
    for (int i = 0; i < record_bytes; i++) *p++ = (uint8_t)('a' + i % 26);
    *p++ = 0;                                          /* no headers */
    size_t size = (size_t)(p - batch);
    uint8_t *b = put64(batch, 0);
    b = put32(b, (uint32_t)size - 12);
    b = put32(b, 0xffffffff);
    b = put8(b, 2);
    b = put32(b, 0);
    b = put16(b, 0);
    b = put32(b, 0);
    b = put64(b, 1700000000000ull);
    b = put64(b, 1700000000000ull);
    b = put64(b, ~0ull);
    b = put16(b, -1);
    b = put32(b, 0xffffffff);
    put32(b, 1);
    put32(batch + 17, crc32c(batch + 21, size - 21));
    return size;
}

typedef struct {
    uint8_t *bytes;
    size_t size;
} Request;

static size_t error_position;

static uint8_t *put_bytes(uint8_t *p, const void *bytes, size_t n) { memcpy(p, bytes, n); return p + n; }
static uint8_t *put_name(uint8_t *p, const char *name) {
    return put_bytes(put_varint(p, strlen(name) + 1), name, strlen(name));
}

static uint8_t *begin(Request *request, int api_key, size_t body_bytes_max) {
    request->bytes = malloc(body_bytes_max + 64);
    uint8_t *p = request->bytes + 4;
    p = put16(p, api_key);
    p = put16(p, 9);
    p = put32(p, 7);
    p = put_bytes(put16(p, 4), "load", 4);
    return put8(p, 0);                                 /* header tags */
}

static void end(Request *request, uint8_t *p) {
    request->size = (size_t)(p - request->bytes);
    put32(request->bytes, (uint32_t)request->size - 4);
}

static Request build_produce(const char *topic, int record_bytes) {
    Request request;
    size_t topic_bytes = strlen(topic);
    uint8_t *p = begin(&request, 0, (size_t)record_bytes + topic_bytes + 512);
    p = put8(p, 0);                                    /* no transaction */
    p = put16(p, -1);                                  /* acks all */
    p = put32(p, 30000);
    p = put_name(put8(p, 2), topic);
    p = put8(p, 2);
    p = put32(p, 0);
    uint8_t *batch = malloc((size_t)record_bytes + 256);
    size_t batch_bytes = build_batch(batch, record_bytes);
    p = put_bytes(put_varint(p, batch_bytes + 1), batch, batch_bytes);
    free(batch);
    end(&request, put8(put8(put8(p, 0), 0), 0));
    /* size, correlation id, tags, array, name, array, index: then the error code */
    error_position = 4 + 4 + 1 + 1 + (1 + topic_bytes) + 1 + 4;
    return request;
}

static Request build_commit(const char *topic, const char *group) {
    Request request;
    uint8_t *p = begin(&request, 8, strlen(topic) + strlen(group) + 128);
    p = put_name(p, group);
    p = put32(p, 0xffffffff);                          /* no generation: the group has no members */
    p = put8(put8(p, 1), 0);                           /* no member id, no instance id */
    p = put_name(put8(p, 2), topic);
    p = put32(put8(p, 2), 0);
    p = put64(p, 12345);
    p = put32(p, 0xffffffff);                          /* no leader epoch */
    p = put8(p, 1);                                    /* no metadata */
    end(&request, put8(put8(put8(p, 0), 0), 0));
    /* size, correlation id, tags, throttle time, array, name, array, index: then the error code */
    error_position = 4 + 4 + 1 + 4 + 1 + (1 + strlen(topic)) + 1 + 4;
    return request;
}

/* -- connections ------------------------------------------------------------------------------------------------ */

static int port;

static int dial(int flags) {
    int s = socket(AF_INET, SOCK_STREAM | flags, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (s < 0) die("socket");
    if (connect(s, (void *)&a, sizeof a) && errno != EINPROGRESS) die("connect");
    int one = 1;
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return s;
}

typedef struct {
    Request request;
    int fd, in_flight, sending;
    size_t sent, have;
    double started[WINDOW_MAX];
    unsigned first, last;
    uint8_t answer[ANSWER_BYTES_MAX];
} Client;

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float *latencies;
static long done, errors;

static void read_answers(Client *c) {
    ssize_t n = read(c->fd, c->answer + c->have, sizeof c->answer - c->have);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) die("the broker hung up");
    c->have += (size_t)n;
    size_t p = 0;
    while (c->have - p >= 4) {
        size_t size = get32(c->answer + p) + 4u;
        if (c->have - p < size) break;
        if (c->answer[p + error_position] || c->answer[p + error_position + 1]) errors++;
        latencies[done++] = (float)(now() - c->started[c->first++ % WINDOW_MAX]);
        c->in_flight--;
        p += size;
    }
    memmove(c->answer, c->answer + p, c->have - p);
    c->have -= p;
}

static int load(Client *clients, int connections, int window, long wanted, double rate) {
    long issued = 0;
    latencies = malloc(sizeof *latencies * (size_t)(wanted + WINDOW_MAX));
    int poller = epoll_create1(0);
    for (int i = 0; i < connections; i++) {
        clients[i].fd = dial(0);
        fcntl(clients[i].fd, F_SETFL, O_NONBLOCK);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &clients[i]};
        epoll_ctl(poller, EPOLL_CTL_ADD, clients[i].fd, &e);
    }
    double begun = now();
    int next = 0;
    while (done < wanted && now() < begun + SECONDS_MAX) {
        for (int idle = 0; idle < connections;) {
            Client *c = &clients[next];
            next = (next + 1) % connections;
            idle++;
            if (!c->sending) {
                if (c->in_flight >= window || issued >= wanted) continue;
                double due = rate > 0 ? begun + (double)issued / rate : 0;
                if (rate > 0 && now() < due) break;
                c->started[c->last++ % WINDOW_MAX] = rate > 0 ? due : now();
                c->sending = 1;
                c->sent = 0;
                c->in_flight++;
                issued++;
            }
            ssize_t n = write(c->fd, c->request.bytes + c->sent, c->request.size - c->sent);
            if (n < 0 && errno != EAGAIN) die("write");
            if (n > 0) c->sent += (size_t)n;
            if (c->sent == c->request.size) {
                c->sending = 0;
                idle = 0;
            }
        }
        struct epoll_event ready[256];
        int timeout = rate > 0 ? 0 : 100;
        int count = epoll_wait(poller, ready, 256, timeout);
        for (int i = 0; i < count; i++) read_answers(ready[i].data.ptr);
    }
    double took = now() - begun;
    qsort(latencies, (size_t)done, sizeof *latencies, by_value);
    printf("{\"requests\":%ld,\"errors\":%ld,\"per_second\":%.0f,\"p50_us\":%.0f,\"p99_us\":%.0f}\n", done, errors,
           (double)done / took, latencies[done / 2] * 1e6, latencies[(long)((double)done * .99)] * 1e6);
    return done == wanted ? 0 : 1;
}

static int produce(int argc, char **argv) {
    if (argc < 8) return 2;
    int connections = atoi(argv[4]);
    Client *clients = calloc((size_t)connections, sizeof *clients);
    Request request = build_produce(argv[3], atoi(argv[7]));
    for (int i = 0; i < connections; i++) clients[i].request = request;
    return load(clients, connections, atoi(argv[5]), atol(argv[6]), argc > 8 ? atof(argv[8]) : 0);
}

static int commit(int argc, char **argv) {
    if (argc < 6) return 2;
    int connections = atoi(argv[4]);
    Client *clients = calloc((size_t)connections, sizeof *clients);
    for (int i = 0; i < connections; i++) {
        char group[64];
        snprintf(group, sizeof group, "committer-%d", i);
        clients[i].request = build_commit(argv[3], group);
    }
    return load(clients, connections, 1, atol(argv[5]), 0);
}
static int connect_all(int argc, char **argv) {
    if (argc < 4) return 2;
    static const uint8_t ask[] = {0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 255, 255};
    int connections = atoi(argv[3]), answered = 0, refused = 0;
    int poller = epoll_create1(0);
    double begun = now();
    for (int i = 0; i < connections; i++) {
        struct epoll_event e = {.events = EPOLLOUT, .data.fd = dial(SOCK_NONBLOCK)};
        epoll_ctl(poller, EPOLL_CTL_ADD, e.data.fd, &e);
    }
    while (answered + refused < connections && now() < begun + SECONDS_MAX) {
        struct epoll_event ready[256];
        int count = epoll_wait(poller, ready, 256, 1000);
        for (int i = 0; i < count; i++) {
            int fd = ready[i].data.fd;
            uint8_t answer[ANSWER_BYTES_MAX];
            if (ready[i].events & EPOLLOUT) {
                if (write(fd, ask, sizeof ask) != sizeof ask) {
                    refused++;
                    close(fd);
                    continue;
                }
                struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
                epoll_ctl(poller, EPOLL_CTL_MOD, fd, &e);
            } else {
                if (read(fd, answer, sizeof answer) > 0) answered++;
                else refused++;
                epoll_ctl(poller, EPOLL_CTL_DEL, fd, 0);
            }
        }
    }
    printf("{\"connections\":%d,\"answered\":%d,\"refused\":%d,\"seconds\":%.3f}\n", connections, answered, refused,
           now() - begun);
    return answered == connections ? 0 : 1;
}

static int hold_idle(int argc, char **argv) {
    if (argc < 4) return 2;
    for (int i = atoi(argv[3]); i > 0; i--) dial(0);
    printf("open\n");
    fflush(stdout);
    while (getchar() != EOF) continue;
    return 0;
}

int main(int argc, char **argv) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if (argc > 2) {
        port = atoi(argv[2]);
        if (!strcmp(argv[1], "produce")) return produce(argc, argv);
        if (!strcmp(argv[1], "commit")) return commit(argc, argv);
        if (!strcmp(argv[1], "connect")) return connect_all(argc, argv);
        if (!strcmp(argv[1], "idle")) return hold_idle(argc, argv);
    }
    fprintf(stderr, "usage: rawload produce|commit|connect|idle PORT ...\n");
    return 2;
}
