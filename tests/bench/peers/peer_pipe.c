/* SPDX-License-Identifier: Apache-2.0
 *
 * memcached and redis, spoken with as little code as they allow: one connection, PEERS_DEPTH
 * requests in flight, values read straight into the caller's buffer. Must not know of Quire.
 */
#include "peers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define LINE_MAX_BYTES 256

/** What differs between the two: how a request is written, how a reply opens and closes. */
struct dialect {
    int (*set_head)(char *out, const char *key, size_t bytes);
    int (*get_head)(char *out, const char *key);
    const char *stored;    /* the reply to a set, with its line end */
    const char *get_close; /* what follows a value */
    const char *found;     /* how the reply to a get begins */
};

/** Bytes read but not used yet: reply lines, or the start of the next reply. */
struct reader {
    int fd;
    size_t begin, end;
    char bytes[4096];
};

static int write_all(int fd, struct iovec *part, int parts)
{
    while (parts > 0) {
        const ssize_t wrote = writev(fd, part, parts);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0) {
            perror("peers: write");
            return -1;
        }
        size_t left = (size_t)wrote;
        while (parts > 0 && left >= part->iov_len) {
            left -= part->iov_len;
            part++;
            parts--;
        }
        if (parts > 0) {
            part->iov_base = (char *)part->iov_base + left;
            part->iov_len -= left;
        }
    }
    return 0;
}

/* Fill `into` first, then what the socket has besides into the reader. */
static ssize_t read_some(struct reader *r, char *into, size_t bytes)
{
    if (r->begin == r->end)
        r->begin = r->end = 0;
    struct iovec part[2] = {{into, bytes}, {r->bytes + r->end, sizeof(r->bytes) - r->end}};
    ssize_t got;
    do
        got = readv(r->fd, part, 2);
    while (got < 0 && errno == EINTR);
    if (got <= 0) {
        fprintf(stderr, "peers: read: %s\n", got ? strerror(errno) : "connection closed");
        return -1;
    }
    const size_t mine = (size_t)got < bytes ? (size_t)got : bytes;
    r->end += (size_t)got - mine;
    return (ssize_t)mine;
}

static int read_exact(struct reader *r, char *into, size_t bytes)
{
    const size_t held = r->end - r->begin;
    size_t done = held < bytes ? held : bytes;
    memcpy(into, r->bytes + r->begin, done);
    r->begin += done;
    while (done < bytes) {
        const ssize_t got = read_some(r, into + done, bytes - done);
        if (got < 0)
            return -1;
        done += (size_t)got;
    }
    return 0;
}

static int read_line(struct reader *r, char line[LINE_MAX_BYTES])
{
    for (size_t i = 0; i + 1 < LINE_MAX_BYTES; i++) {
        if (read_exact(r, line + i, 1))
            return -1;
        line[i + 1] = '\0';
        if (line[i] == '\n')
            return 0;
    }
    fprintf(stderr, "peers: a reply line of more than %d bytes\n", LINE_MAX_BYTES);
    return -1;
}

static int read_expected(struct reader *r, const char *expected)
{
    char got[LINE_MAX_BYTES] = "";
    if (read_exact(r, got, strlen(expected)))
        return -1;
    if (strcmp(got, expected) == 0)
        return 0;
    fprintf(stderr, "peers: the reply is '%s', wanted '%s'\n", got, expected);
    return -1;
}

static int memcached_set_head(char *out, const char *key, size_t bytes)
{
    return snprintf(out, LINE_MAX_BYTES, "set %s 0 0 %zu\r\n", key, bytes);
}
static int memcached_get_head(char *out, const char *key)
{
    return snprintf(out, LINE_MAX_BYTES, "get %s\r\n", key);
}
static int redis_set_head(char *out, const char *key, size_t bytes)
{
    return snprintf(out, LINE_MAX_BYTES, "*3\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%zu\r\n",
                    strlen(key), key, bytes);
}
static int redis_get_head(char *out, const char *key)
{
    return snprintf(out, LINE_MAX_BYTES, "*2\r\n$3\r\nGET\r\n$%zu\r\n%s\r\n", strlen(key), key);
}

static const struct dialect memcached_dialect = {
    memcached_set_head, memcached_get_head, "STORED\r\n", "\r\nEND\r\n", "VALUE ",
};
static const struct dialect redis_dialect = {
    redis_set_head, redis_get_head, "+OK\r\n", "\r\n", "$",
};

static uint32_t block_count(const struct workload *w)
{
    return w->layers * (w->tokens / w->block_tokens);
}

static int pipe_append(struct store *s, const struct workload *w)
{
    const struct dialect *d = s->state;
    struct reader reader = {.fd = s->fd};
    const size_t bytes = workload_block_bytes(w);
    const uint32_t count = block_count(w);
    char *const from = (char *)(uintptr_t)w->blocks; /* writev's iovec has no const */
    for (uint32_t i = 0; i < count + PEERS_DEPTH; i++) {
        if (i >= PEERS_DEPTH && read_expected(&reader, d->stored))
            return -1;
        if (i >= count)
            continue;
        char key[32];
        char head[LINE_MAX_BYTES];
        snprintf(key, sizeof(key), "block%u", i);
        const int head_bytes = d->set_head(head, key, bytes);
        struct iovec part[3] = {
            {head, (size_t)head_bytes},
            {from + i * bytes, bytes},
            {(char[2]){'\r', '\n'}, 2},
        };
        if (write_all(s->fd, part, 3))
            return -1;
    }
    return 0;
}

static int send_get(struct store *s, uint32_t i)
{
    const struct dialect *d = s->state;
    char key[32];
    char head[LINE_MAX_BYTES];
    snprintf(key, sizeof(key), "block%u", i);
    const int head_bytes = d->get_head(head, key);
    return write_all(s->fd, &(struct iovec){head, (size_t)head_bytes}, 1);
}

static int read_value(struct reader *r, const struct dialect *d, char *into, size_t bytes)
{
    char line[LINE_MAX_BYTES];
    if (read_line(r, line))
        return -1;
    const char *last = strrchr(line, ' '); /* memcached: VALUE key flags bytes */
    const size_t said = strtoul(last ? last + 1 : line + 1, NULL, 10);
    if (strncmp(line, d->found, strlen(d->found)) != 0 || said != bytes) {
        fprintf(stderr, "peers: the reply is '%.40s', wanted a value of %zu bytes\n", line,
                bytes);
        return -1;
    }
    return read_exact(r, into, bytes) || read_expected(r, d->get_close) ? -1 : 0;
}

static int pipe_fetch(struct store *s, const struct workload *w)
{
    struct reader reader = {.fd = s->fd};
    const size_t bytes = workload_block_bytes(w);
    const uint32_t count = block_count(w);
    for (uint32_t i = 0; i < PEERS_DEPTH && i < count; i++)
        if (send_get(s, i))
            return -1;
    for (uint32_t i = 0; i < count; i++) {
        if (read_value(&reader, s->state, (char *)w->into + i * bytes, bytes))
            return -1;
        if (i + PEERS_DEPTH < count && send_get(s, i + PEERS_DEPTH))
            return -1;
    }
    return 0;
}

static void pipe_stop(struct store *s)
{
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
    process_stop(s->server);
    s->server = 0;
}

/* Twice the data: slabs and allocators round up. */
static size_t memory_mib(const struct workload *w)
{
    return 2 * (workload_bytes(w) >> 20) + 128;
}

static int memcached_start(struct store *s, const char *scratch, const struct workload *w)
{
    char port[8];
    char memory[24];
    snprintf(s->socket_path, sizeof(s->socket_path), "%s/memcached.sock", scratch);
    s->port = port_pick();
    snprintf(port, sizeof(port), "%u", s->port);
    snprintf(memory, sizeof(memory), "%zu", memory_mib(w));
    char *unix_argv[] = {"memcached", "-s", s->socket_path, "-m",   memory, "-I", "4m",
                         "-t",        "2",  "-u",           "root", NULL};
    char *tcp_argv[] = {"memcached", "-l", "127.0.0.1", "-p", port, "-U", "0",    "-m",
                        memory,      "-I", "4m",        "-t", "2",  "-u", "root", NULL};
    s->state = (void *)(uintptr_t)&memcached_dialect;
    s->server = process_start(scratch, "memcached",
                              s->transport == TRANSPORT_UNIX ? unix_argv : tcp_argv);
    return s->server < 0 ? -1 : store_connect(s);
}

static int redis_start(struct store *s, const char *scratch, const struct workload *w)
{
    char port[8];
    char memory[24];
    snprintf(s->socket_path, sizeof(s->socket_path), "%s/redis.sock", scratch);
    s->port = s->transport == TRANSPORT_TCP ? port_pick() : 0;
    snprintf(port, sizeof(port), "%u", s->port);
    snprintf(memory, sizeof(memory), "%zumb", memory_mib(w));
    char *argv[] = {"redis-server",
                    "--port",
                    port,
                    "--bind",
                    "127.0.0.1",
                    "--unixsocket",
                    s->socket_path,
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                    "--maxmemory",
                    memory,
                    "--dir",
                    (char *)(uintptr_t)scratch,
                    NULL};
    s->state = (void *)(uintptr_t)&redis_dialect;
    s->server = process_start(scratch, "redis", argv);
    return s->server < 0 ? -1 : store_connect(s);
}

const struct store_ops memcached_ops = {
    .name = "memcached",
    .start = memcached_start,
    .append = pipe_append,
    .fetch = pipe_fetch,
    .stop = pipe_stop,
};
const struct store_ops redis_ops = {
    .name = "redis",
    .start = redis_start,
    .append = pipe_append,
    .fetch = pipe_fetch,
    .stop = pipe_stop,
};
