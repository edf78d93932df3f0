/* SPDX-License-Identifier: Apache-2.0
 *
 * quired: the set-ups in order, the tear-downs in reverse. Must not know what any
 * of them does inside.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "config.h"
#include "listen.h"
#include "proto/cpu.h"
#include "rpc.h"
#include "service.h"
#include "storage/base/clock.h"
#include "storage/base/log.h"

extern char **environ;

#define LISTEN_MAX 8
#define OVERHEAD_BYTES (48 << 20) /* beside `memory`: above it, freed memory is given back */
#define ARENAS_MAX 4
#define DEFERRED_THREADS_MAX 4 /* they wait for the store's attend threads */
#define TICK_S 1

struct quired {
    struct qr_config config;
    struct qr_command command;
    struct qr_store *store;
    struct qr_service *service;
    struct qr_rpc *rpc;
    struct qr_address addresses[LISTEN_MAX];
    uint32_t address_count, bound_count;
    bool drained;
};

static uint64_t number(const struct quired *d, enum qr_option option)
{
    return qr_config_number(&d->config, option);
}

/* ---- set-ups and tear-downs ------------------------------------------------------------- */

/* Signals are waited for by the main thread alone; threads inherit the mask. */
static quire_status set_up_signals(struct quired *d, struct qr_error *e)
{
    sigset_t set;

    (void)d;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGPIPE);
    if (pthread_sigmask(SIG_BLOCK, &set, NULL))
        return qr_error_set(e, QUIRE_EINTERNAL, "signals cannot be blocked");
    return QUIRE_OK;
}

/* A connection is a descriptor, and gRPC stops accepting for good once there is none left. */
static quire_status set_up_descriptors(struct quired *d, struct qr_error *e)
{
    struct rlimit limit;

    (void)d;
    (void)e;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit); /* then it stays what it is */
    }
    return QUIRE_OK;
}

static quire_status set_up_log(struct quired *d, struct qr_error *e)
{
    enum qr_log_level level = QR_LOG_INFO;
    const bool json = !strcmp(qr_config_text(&d->config, QR_OPTION_log_format), "json");

    (void)e;
    (void)qr_log_level_parse(qr_config_text(&d->config, QR_OPTION_log_level), &level);
    qr_log_configure(level, json ? QR_LOG_JSON : QR_LOG_TEXT, STDERR_FILENO);
    return QUIRE_OK;
}

/* Message buffers come and go by the megabyte: giving them back to the kernel each time would
 * cost half of the speed. What is kept is bounded by wire_memory, and trim(). */
static quire_status set_up_memory(struct quired *d, struct qr_error *e)
{
    const uint64_t wire_bytes = number(d, QR_OPTION_wire_memory);

    (void)e;
    (void)mallopt(M_TRIM_THRESHOLD, wire_bytes < INT_MAX ? (int)wire_bytes : INT_MAX);
    (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
    (void)mallopt(M_ARENA_MAX, ARENAS_MAX);
    return QUIRE_OK;
}

static quire_status set_up_addresses(struct quired *d, struct qr_error *e)
{
    char item[QR_OPTION_TEXT_MAX + 1];
    quire_status status = QUIRE_OK;

    for (uint32_t i = 0; !status && qr_config_item(&d->config, QR_OPTION_listen, i, item);
         i++) {
        if (i == LISTEN_MAX)
            return qr_error_set(e, QUIRE_ETOOBIG, "listen: more than %d addresses", LISTEN_MAX);
        status = qr_address_parse(item, &d->addresses[i], e);
        d->address_count = i + 1;
    }
    return status;
}

/* A small log has small segments: at least six, so that they come and go. */
static uint32_t tail_segment_bytes(uint64_t log_bytes)
{
    const uint64_t share = log_bytes / 6 / 4096 * 4096;

    return share < 64u << 20 ? (uint32_t)share : 64u << 20;
}

/* "FOLDER=SIZE" items of `disk`; the texts are the caller's. */
static quire_status disk_folders(struct quired *d,
                                 char texts[QR_STORE_FOLDERS_MAX][QR_OPTION_TEXT_MAX + 1],
                                 struct qr_store_disk_config *out, struct qr_error *e)
{
    char item[QR_OPTION_TEXT_MAX + 1];

    for (uint32_t i = 0; qr_config_item(&d->config, QR_OPTION_disk, i, item); i++) {
        char *equals = strrchr(item, '=');
        if (i == QR_STORE_FOLDERS_MAX)
            return qr_error_set(e, QUIRE_ETOOBIG, "disk: more than %u folders",
                                QR_STORE_FOLDERS_MAX);
        if (!equals || equals == item || !qr_config_size(equals + 1, &out->cap_bytes[i]))
            return qr_error_set(e, QUIRE_EINVAL,
                                "disk: \"%.100s\" must be FOLDER=SIZE, as in "
                                "/var/lib/quire=100GiB",
                                item);
        *equals = 0;
        memcpy(texts[i], item, strlen(item) + 1);
        out->folders[i] = texts[i];
        out->count = i + 1;
    }
    return QUIRE_OK;
}

static quire_status set_up_store(struct quired *d, struct qr_error *e)
{
    static char texts[QR_STORE_FOLDERS_MAX][QR_OPTION_TEXT_MAX + 1];
    struct qr_store_disk_config disk = {
        .allow_missing = number(d, QR_OPTION_disk_missing) != 0,
        .no_uring = number(d, QR_OPTION_io_uring) == 0,
        .drop_when_full = !strcmp(qr_config_text(&d->config, QR_OPTION_disk_full), "drop"),
        .tail_log_bytes = number(d, QR_OPTION_tail_log),
        .tail_segment_bytes = tail_segment_bytes(number(d, QR_OPTION_tail_log)),
        .index_cache_bytes = number(d, QR_OPTION_index_cache),
        .scrub_bytes_per_s = number(d, QR_OPTION_disk_scrub),
    };
    const quire_status status = disk_folders(d, texts, &disk, e);
    if (status)
        return status;
    const struct qr_store_config config = {
        .host_budget_bytes = number(d, QR_OPTION_memory),
        .sessions_max = (uint32_t)number(d, QR_OPTION_max_sessions),
        .models_max = (uint32_t)number(d, QR_OPTION_max_models),
        .lease_ms = (uint32_t)number(d, QR_OPTION_lease),
        .ttl_ms = number(d, QR_OPTION_ttl),
        .attend_threads = (uint32_t)number(d, QR_OPTION_attend_threads),
        .receipts = (uint32_t)number(d, QR_OPTION_receipts),
        .huge_pages = (int)number(d, QR_OPTION_huge_pages),
        .disk = disk.count ? &disk : NULL,
    };

    return qr_store_create(&config, &d->store, e);
}

static void tear_down_store(struct quired *d)
{
    qr_store_destroy(&d->store);
}

static quire_status set_up_service(struct quired *d, struct qr_error *e)
{
    return qr_service_create(&d->config, d->store, &d->service, e);
}

static void tear_down_service(struct quired *d)
{
    qr_service_destroy(&d->service);
}

static quire_status set_up_rpc(struct quired *d, struct qr_error *e)
{
    const uint32_t attend_threads = (uint32_t)number(d, QR_OPTION_attend_threads);
    const struct qr_rpc_config config = {
        .methods = qr_service_methods,
        .method_count = qr_service_method_count,
        .service = d->service,
        .identify = qr_service_identify,
        .release = qr_service_release,
        .threads = (uint32_t)number(d, QR_OPTION_server_threads),
        .calls_max = (uint32_t)number(d, QR_OPTION_max_calls),
        .pins_max = (uint32_t)number(d, QR_OPTION_fetch_pages),
        .deferred_threads =
            attend_threads < DEFERRED_THREADS_MAX ? attend_threads : DEFERRED_THREADS_MAX,
        .deferred_max = (uint32_t)number(d, QR_OPTION_max_attends),
        .waiting_threads =
            d->service->has_disk ? (uint32_t)number(d, QR_OPTION_control_threads) : 0,
        .message_bytes_max = number(d, QR_OPTION_max_message_bytes),
        .wire_memory_bytes = number(d, QR_OPTION_wire_memory),
        .stall_ms = (uint32_t)number(d, QR_OPTION_stall_timeout),
        .handshake_ms = (uint32_t)number(d, QR_OPTION_handshake_timeout),
    };
    const quire_status status = qr_rpc_create(&config, &d->rpc, e);

    d->service->rpc = d->rpc;
    return status;
}

static quire_status set_up_local(struct quired *d, struct qr_error *e)
{
    return qr_service_offer_local(d->service, d->addresses, d->address_count, e);
}

static void tear_down_local(struct quired *d)
{
    qr_local_destroy(&d->service->local);
}

static void tear_down_rpc(struct quired *d)
{
    qr_rpc_destroy(&d->rpc);
}

/* The address as bound: with the port that was chosen for port 0. */
static void name_port(struct qr_address *address, uint16_t port)
{
    char *colon = strrchr(address->text, ':');

    if (address->is_unix || address->port)
        return;
    address->port = port;
    snprintf(colon + 1, sizeof(address->text) - (size_t)(colon + 1 - address->text), "%u",
             port);
}

static quire_status set_up_sockets(struct quired *d, struct qr_error *e)
{
    for (uint32_t i = 0; i < d->address_count; i++) {
        struct qr_address *address = &d->addresses[i];
        uint16_t port = 0;
        quire_status status = qr_address_claim(address, e);
        if (!status)
            status = qr_rpc_bind(d->rpc, address->text, &port, e);
        if (status)
            return status;
        d->bound_count = i + 1;
        name_port(address, port);
    }
    return qr_rpc_start(d->rpc, e);
}

static void tear_down_sockets(struct quired *d)
{
    for (uint32_t i = 0; i < d->bound_count; i++)
        qr_address_release(&d->addresses[i]);
}

static quire_status write_addresses(const struct quired *d, FILE *out, const char *name,
                                    struct qr_error *e)
{
    if (!out)
        return qr_error_set(e, QUIRE_EIO, "%s cannot be written: %s", name, strerror(errno));
    for (uint32_t i = 0; i < d->address_count; i++)
        fprintf(out, "%s\n", d->addresses[i].text);
    if (fclose(out))
        return qr_error_set(e, QUIRE_EIO, "%s cannot be written: %s", name, strerror(errno));
    return QUIRE_OK;
}

static quire_status set_up_ready(struct quired *d, struct qr_error *e)
{
    const char *path = qr_config_text(&d->config, QR_OPTION_ready_file);
    char fresh[QR_OPTION_TEXT_MAX + 8];
    quire_status status = QUIRE_OK;

    if (path[0]) { /* whole or not at all: whoever waits for it reads it at once */
        snprintf(fresh, sizeof(fresh), "%s.new", path);
        status = write_addresses(d, fopen(fresh, "we"), path, e);
        if (!status && rename(fresh, path))
            status =
                qr_error_set(e, QUIRE_EIO, "%s cannot be written: %s", path, strerror(errno));
        if (status)
            (void)unlink(fresh);
    }
    if (!status && d->command.ready_fd >= 0)
        status = write_addresses(d, fdopen(d->command.ready_fd, "w"), "--ready-fd", e);
    for (uint32_t i = 0; !status && i < d->address_count; i++)
        QR_LOG(QR_LOG_INFO, "server.ready", QR_LOG_STR("address", d->addresses[i].text));
    return status;
}

static void tear_down_ready(struct quired *d)
{
    const char *path = qr_config_text(&d->config, QR_OPTION_ready_file);

    if (path[0])
        (void)unlink(path);
}

static const struct set_up {
    const char *name;
    quire_status (*up)(struct quired *d, struct qr_error *e);
    void (*down)(struct quired *d); /* also of a set-up that failed half-way; may be NULL */
} set_ups[] = {
    {"signals", set_up_signals, NULL},
    {"log", set_up_log, NULL},
    {"descriptors", set_up_descriptors, NULL},
    {"memory", set_up_memory, NULL},
    {"addresses", set_up_addresses, NULL},
    {"store", set_up_store, tear_down_store},
    {"service", set_up_service, tear_down_service},
    {"rpc", set_up_rpc, tear_down_rpc},
    {"local", set_up_local, tear_down_local},
    {"sockets", set_up_sockets, tear_down_sockets},
    {"ready", set_up_ready, tear_down_ready},
};
#define SET_UP_COUNT (sizeof(set_ups) / sizeof(set_ups[0]))

/* ---- running ---------------------------------------------------------------------------- */

static uint64_t resident_bytes(void)
{
    unsigned long pages = 0;
    char text[128];
    const int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC); /* no FILE: no allocation */
    const ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;

    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = 0;
    if (sscanf(text, "%*u %lu", &pages) != 1)
        return 0;
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* A burst of messages leaves freed memory behind: none of it is kept near the bound. */
static void trim(const struct quired *d)
{
    const uint64_t memory = number(d, QR_OPTION_memory);

    if (d->service->has_disk) /* the disk's buffers and index come on top */
        return;
    if (resident_bytes() > memory + memory / 10 + OVERHEAD_BYTES)
        (void)malloc_trim(0);
}

/* Until SIGTERM or SIGINT; the store's clock ticks meanwhile. */
static int wait_for_end(struct quired *d)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    for (;;) {
        const int got = sigtimedwait(&set, NULL, &(struct timespec){.tv_sec = TICK_S});
        if (got > 0)
            return got;
        trim(d);
        const uint32_t dropped = qr_store_tick(d->store);
        if (dropped)
            QR_LOG(QR_LOG_INFO, "sessions.expired", QR_LOG_U64("count", dropped));
    }
}

static void drain(struct quired *d, int signal)
{
    QR_LOG(QR_LOG_INFO, "server.draining", QR_LOG_STR("signal", strsignal(signal)),
           QR_LOG_U64("timeout_ms", number(d, QR_OPTION_drain_timeout)));
    tear_down_ready(d);
    atomic_store(&d->service->serving, false);
    const uint64_t until_ms = qr_clock_ms() + number(d, QR_OPTION_drain_timeout);
    if (d->service->local)
        qr_local_refuse(d->service->local);
    d->drained = qr_rpc_drain(d->rpc, (uint32_t)number(d, QR_OPTION_drain_notice),
                              (uint32_t)number(d, QR_OPTION_drain_timeout));
    if (d->service->local && !qr_local_stop(d->service->local, until_ms))
        d->drained = false;
    if (d->drained)
        QR_LOG(QR_LOG_INFO, "server.stopped", QR_LOG_U64("complete", 1));
    else
        QR_LOG(QR_LOG_ERROR, "server.stopped", QR_LOG_U64("complete", 0));
}

static int serve(struct quired *d)
{
    struct qr_error e = {0};
    size_t up = 0;
    quire_status status = QUIRE_OK;

    for (; !status && up < SET_UP_COUNT; up++)
        status = set_ups[up].up(d, &e);
    if (status)
        QR_LOG(QR_LOG_ERROR, "server.failed", QR_LOG_STR("at", set_ups[up - 1].name),
               QR_LOG_STR("status", qr_status_name(status)), QR_LOG_STR("why", e.text));
    else
        drain(d, wait_for_end(d));
    if (!status && !d->drained) {
        tear_down_sockets(d);
        _exit(1); /* calls are still inside: nothing may be freed under them */
    }
    while (up > 0)
        if (set_ups[--up].down)
            set_ups[up].down(d);
    return status ? 1 : 0;
}

/* ---- configuration ---------------------------------------------------------------------- */

static int refuse(const struct qr_error *e)
{
    fprintf(stderr, "quired: %s\n", e->text);
    return 2;
}

/* All layers, then what can be checked without starting anything. */
static quire_status configure(struct quired *d, int argc, char **argv, struct qr_error *e)
{
    quire_status status = QUIRE_OK;

    if (qr_isa_unknown())
        return qr_error_set(e, QUIRE_EINVAL,
                            "environment QUIRE_ISA is \"%.40s\", must be " QR_ISA_NAMES,
                            qr_isa_unknown());
    qr_config_defaults(&d->config);
    if (d->command.file)
        status = qr_config_file(&d->config, d->command.file, e);
    if (!status)
        status = qr_config_environment(&d->config, environ, e);
    if (!status)
        status = qr_config_flags(&d->config, argc, argv, e);
    qr_config_derive(&d->config);
    if (!status)
        status = qr_config_check(&d->config, e);
    if (!status)
        status = set_up_addresses(d, e);
    return status;
}

int main(int argc, char **argv)
{
    static struct quired d;
    struct qr_error e = {0};

    if (qr_command_parse(argc, argv, environ, &d.command, &e))
        return refuse(&e);
    if (d.command.help) {
        qr_config_help(stdout);
        return 0;
    }
    if (d.command.version) {
        puts("quired " QUIRE_VERSION);
        return 0;
    }
    if (configure(&d, argc, argv, &e))
        return refuse(&e);
    if (d.command.print)
        qr_config_print(&d.config, stdout);
    if (d.command.check)
        fputs("quired: the configuration is good\n", stderr);
    if (d.command.print || d.command.check)
        return 0;
    const int code = serve(&d);
    (void)fflush(NULL);
    _exit(code); /* gRPC's own threads may still be ending */
}
