/* SPDX-License-Identifier: Apache-2.0
 *
 * A quired with a disk is killed with SIGKILL at random moments while several
 * clients append (for memory and for the disk), cut, fork, drop, flush and fetch,
 * and is started again on the same folder. What it then has is compared with what
 * was acknowledged: no acknowledged row is lost, no byte is wrong, every session
 * opens, what was dropped stays dropped, epochs do not go back, the cap is kept.
 *
 * usage: test_server_kill [KILLS], or QUIRE_KILLS; QUIRE_SEED replays the choices (not the
 * moments).
 */
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "server_kill.h"
#include "storage/base/log.h"
#include "storage/tier/disk_check.h"

#define THREADS 3u
#define SLOTS 4u /* sessions of a thread */
#define KILLS 200u
#define CHECK_EVERY 8u /* kills between two offline checks */
#define CAP_BYTES (128u << 20)
#define RUN_US_MAX 350000u
#define START_US_MAX 60000u

struct client {
    struct slot slots[SLOTS];
    uint64_t seed;
    uint32_t next_salt;
    quire_client *client;
    pthread_t thread;
    uint64_t operations;
    quire_status stopped; /* why its thread ended */
};

static struct client clients[THREADS];
static char folder[256], disk[300], target[300];
static uint8_t fingerprint[32];
static struct quire_policy policy;
static uint64_t seed;

static uint64_t next_of(uint64_t *s)
{
    *s = *s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *s >> 24;
}

/* ---- the server ------------------------------------------------------------------------- */

static pid_t server_fork(int *ready_out)
{
    char program[512], size[360];
    int ready[2];

    snprintf(program, sizeof(program), "%s/server/quired", getenv("QUIRE_BINARY"));
    snprintf(size, sizeof(size), "%s=%u", disk, CAP_BYTES);
    strcat(size, "B");
    REQUIRE(pipe2(ready, O_CLOEXEC) == 0, "pipe");
    const pid_t pid = fork();
    REQUIRE(pid >= 0, "fork");
    if (pid == 0) {
        static const char *const ours[] = {"QUIRE_DISK_DIR", "QUIRE_KILLS", "QUIRE_SEED"};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (size_t i = 0; i < ARRAY_LEN(ours); i++)
            unsetenv(ours[i]); /* quired would take them for its own */
        dup2(ready[1], 9);
        fcntl(9, F_SETFD, 0); /* when it was 9 before */
        execl(program, program, "--listen", target, "--memory", "16MiB", "--huge-pages",
              "false", "--disk", size, "--tail-log", "12MiB", "--ready-fd", "9", "--log-level",
              "error", (char *)NULL);
        _exit(127);
    }
    close(ready[1]);
    *ready_out = ready[0];
    return pid;
}

static void server_kill(pid_t pid)
{
    int status;

    REQUIRE(kill(pid, SIGKILL) == 0, "kill");
    REQUIRE(waitpid(pid, &status, 0) == pid, "waitpid");
    REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
            "the server ended by itself: %x", (unsigned)status);
}

static pid_t server_start(void)
{
    char text[256];
    int ready;

    while (next_of(&seed) % 8 == 0) { /* killed while it starts */
        const pid_t pid = server_fork(&ready);
        usleep((useconds_t)(next_of(&seed) % START_US_MAX));
        server_kill(pid);
        close(ready);
    }
    const pid_t pid = server_fork(&ready);
    const ssize_t n = read(ready, text, sizeof(text));
    REQUIRE(n > 0, "the server does not start");
    close(ready);
    return pid;
}

/* ---- operations ---------------------------------------------------------------------------
 */

static quire_status open_slot(struct client *c, struct slot *slot, bool create)
{
    struct quire_open_options options;
    struct quire_session_info info;

    if (slot->session)
        return QUIRE_OK;
    quire_open_options_init(&options);
    options.flags = QUIRE_OPEN_WRITE | QUIRE_OPEN_FORCE | (create ? QUIRE_OPEN_CREATE : 0);
    options.fingerprint = fingerprint;
    options.policy = &policy;
    if (create)
        slot->exists = MAYBE;
    quire_status status = quire_session_open(c->client, slot->name, &options, &slot->session);
    if (status != QUIRE_OK)
        return status;
    slot->exists = YES;
    status = quire_session_info(slot->session, &info);
    if (status != QUIRE_OK)
        return status;
    REQUIRE(info.epoch > slot->epoch, "%s: epoch %llu after %llu", slot->name,
            (unsigned long long)info.epoch, (unsigned long long)slot->epoch);
    slot->epoch = info.epoch;
    return status;
}

static quire_status append(struct client *c, struct slot *slot)
{
    static _Thread_local uint16_t rows[2][LAYERS][TOKENS_MAX * ROW];
    const void *key[LAYERS], *value[LAYERS];
    const uint32_t most = next_of(&c->seed) % 4 == 0 ? 200 : 40;
    uint32_t n = 1 + (uint32_t)(next_of(&c->seed) % most);
    const bool durable = next_of(&c->seed) % 2 == 0;

    if (slot->length + n > TOKENS_MAX)
        n = TOKENS_MAX - slot->length;
    if (n == 0)
        return QUIRE_OK;
    for (uint32_t p = slot->length; p < slot->length + n; p++) {
        if (p >= slot->tried) /* else it may be there already */
            slot->salts[p] = c->next_salt;
        for (uint32_t l = 0; l < LAYERS; l++)
            for (uint32_t which = 0; which < 2; which++)
                fill_row(rows[which][l] + (p - slot->length) * ROW, slot->salts[p], l, which,
                         p);
    }
    c->next_salt += THREADS;
    if (slot->tried < slot->length + n)
        slot->tried = slot->length + n;
    for (uint32_t l = 0; l < LAYERS; l++) {
        key[l] = rows[0][l];
        value[l] = rows[1][l];
    }
    const struct quire_append a = {.position = slot->length,
                                   .tokens = n,
                                   .layers = LAYERS,
                                   .dtype = QUIRE_F16,
                                   .key = key,
                                   .value = value,
                                   .durability = durable ? QUIRE_DISK : QUIRE_MEMORY};
    const quire_status status = quire_append(slot->session, &a, NULL);
    if (status != QUIRE_OK)
        return status;
    slot->length += n;
    if (durable) {
        slot->durable = slot->length;
        slot->sure = true;
    }
    return status;
}

static quire_status cut(struct client *c, struct slot *slot)
{
    uint32_t to = (uint32_t)(next_of(&c->seed) % (slot->length + 1));

    if (next_of(&c->seed) % 3 != 0 || slot->length < 2 * PAGE || to < slot->length - PAGE)
        to = to / PAGE * PAGE;
    slot->cut_to = to;
    const quire_status status = quire_session_truncate(slot->session, to);
    if (status == QUIRE_EINVAL) /* inside a sealed page */
        slot->cut_to = UINT32_MAX;
    if (status != QUIRE_OK)
        return status == QUIRE_EINVAL ? QUIRE_OK : status;
    slot->cut_to = UINT32_MAX;
    slot->length = slot->tried = to;
    if (slot->durable > to)
        slot->durable = to;
    return status;
}

static void close_slot(struct slot *slot)
{
    if (slot->session)
        quire_session_close(&slot->session);
}

static quire_status drop(struct client *c, struct slot *slot)
{
    const quire_status before_sure = slot->sure;

    close_slot(slot);
    slot->sure = false;
    slot->exists = MAYBE;
    const quire_status status = quire_session_drop(c->client, slot->name, true);
    if (status == QUIRE_OK)
        slot_reset(slot);
    (void)before_sure;
    return status;
}

static quire_status fork_to(struct client *c, struct slot *from, struct slot *to)
{
    const uint32_t length =
        next_of(&c->seed) % 2 == 0 ? from->length : from->length / 2 / PAGE * PAGE;

    if (length == 0)
        return QUIRE_OK;
    memcpy(to->salts, from->salts, sizeof(to->salts));
    to->exists = MAYBE;
    to->tried = length;
    const quire_status status = quire_session_fork(c->client, from->name, to->name, length);
    if (status != QUIRE_OK)
        return status;
    to->exists = YES;
    to->length = length;
    if (from->sure) {
        to->sure = true;
        to->durable = length;
    }
    return status;
}

static quire_status flush(struct slot *slot)
{
    const quire_status status = quire_session_flush(slot->session);

    if (status == QUIRE_OK) {
        slot->durable = slot->length;
        slot->sure = true;
    }
    return status;
}

static quire_status operate(struct client *c)
{
    struct slot *slot = &c->slots[next_of(&c->seed) % SLOTS];
    const uint64_t choice = next_of(&c->seed) % 100;

    if (slot->exists == YES && choice >= 94) {
        struct slot *other = &c->slots[next_of(&c->seed) % SLOTS];
        if (other != slot && other->exists == NO)
            return fork_to(c, slot, other);
        return drop(c, slot);
    }
    const quire_status status = open_slot(c, slot, true);
    if (status != QUIRE_OK)
        return status;
    if (choice < 65)
        return append(c, slot);
    if (choice < 80)
        return slot_compare(slot, slot->session, slot->length);
    if (choice < 90)
        return cut(c, slot);
    return flush(slot);
}

/* Until the server is gone. Full budgets pass: the clients wait and go on. */
static void *client_main(void *arg)
{
    struct client *c = arg;

    for (;;) {
        const quire_status status = operate(c);
        if (status == QUIRE_EFULL) {
            usleep(2000);
            continue;
        }
        c->stopped = status;
        if (status != QUIRE_OK)
            break;
        c->operations++;
    }
    REQUIRE(c->stopped == QUIRE_EUNAVAILABLE || c->stopped == QUIRE_ETIMEOUT ||
                c->stopped == QUIRE_ECANCELED,
            "a call failed with %s: %s", quire_status_name(c->stopped),
            quire_last_error()->text);
    return NULL;
}

/* ---- after a kill ---------------------------------------------------------------------------
 */

static void check_slot(struct client *c, struct slot *slot)
{
    struct quire_session_info info;
    quire_session *session = NULL;
    const quire_status status = quire_session_open(c->client, slot->name, NULL, &session);

    if (status == QUIRE_ENOTFOUND) {
        REQUIRE(!slot->sure, "%s is gone; %u tokens of it were acknowledged", slot->name,
                slot->durable);
        slot_reset(slot);
        return;
    }
    REQUIRE(status == QUIRE_OK, "%s does not open: %s", slot->name, quire_last_error()->text);
    REQUIRE(quire_session_info(session, &info) == QUIRE_OK, "%s", quire_last_error()->text);
    slot_judge(slot, &info);
    const uint32_t length = (uint32_t)info.length;
    REQUIRE(slot_compare(slot, session, length) == QUIRE_OK, "%s: %s", slot->name,
            quire_last_error()->text);
    quire_session_close(&session);
    slot->exists = YES;
    slot->sure = true;
    slot->cut_to = UINT32_MAX;
    slot->length = slot->durable = length;
    slot->tried = (uint32_t)info.longest;
}

static void register_model(quire_client *client)
{
    static const struct quire_layers layers[] = {{.count = LAYERS,
                                                  .query_heads = HEADS,
                                                  .kv_heads = HEADS,
                                                  .key_dim = DIM,
                                                  .value_dim = DIM}};
    static const struct quire_model model = {.name = "kill", .layers = layers, .layer_runs = 1};

    REQUIRE(quire_model_register(client, &model, fingerprint) == QUIRE_OK, "%s",
            quire_last_error()->text);
}

static void check_all(void)
{
    for (uint32_t i = 0; i < THREADS; i++) {
        REQUIRE(quire_client_open(target, NULL, &clients[i].client) == QUIRE_OK, "%s",
                quire_last_error()->text);
        if (i == 0)
            register_model(clients[i].client);
        for (uint32_t s = 0; s < SLOTS; s++)
            check_slot(&clients[i], &clients[i].slots[s]);
    }
}

static void check_cap(void)
{
    char path[400];
    struct stat st;

    snprintf(path, sizeof(path), "%s/slabs", disk);
    REQUIRE(stat(path, &st) == 0 && st.st_size <= (off_t)CAP_BYTES, "slabs of %lld bytes",
            (long long)st.st_size);
}

static void show_finding(void *arg, const struct qr_disk_finding *finding)
{
    (void)arg;
    if (qr_disk_finding_severity(finding->kind) == QR_DISK_BAD)
        printf("fsck: %s %s (session %s, lane %u, tokens %llu to %llu)\n",
               qr_disk_finding_what(finding->kind), finding->text,
               finding->session ? finding->session : "-", finding->lane,
               (unsigned long long)finding->first_token,
               (unsigned long long)finding->end_token);
}

/* The offline check has nothing to complain of, at whatever moment the server ended. */
static void check_offline(void)
{
    struct qr_disk_check_config config = {.count = 1, .found = show_finding};
    static struct qr_disk_check_result result;
    struct qr_error e = {0};

    config.folders[0] = disk;
    REQUIRE(qr_disk_check(&config, &result, &e) == QUIRE_OK, "fsck: %s", e.text);
    REQUIRE(result.bad == 0, "fsck found %llu bad things", (unsigned long long)result.bad);
}

static void run_until_killed(pid_t server)
{
    for (uint32_t i = 0; i < THREADS; i++)
        REQUIRE(pthread_create(&clients[i].thread, NULL, client_main, &clients[i]) == 0,
                "thread");
    usleep((useconds_t)(next_of(&seed) % RUN_US_MAX));
    server_kill(server);
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(clients[i].thread, NULL);
        for (uint32_t s = 0; s < SLOTS; s++)
            close_slot(&clients[i].slots[s]);
        quire_client_close(&clients[i].client);
    }
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void set_up(void)
{
    const char *base = getenv("QUIRE_DISK_DIR");

    snprintf(folder, sizeof(folder), "%s/quire_kill_XXXXXX", base ? base : ".");
    REQUIRE(mkdtemp(folder), "no folder");
    char *absolute = realpath(folder, NULL);
    REQUIRE(absolute && strlen(absolute) < sizeof(folder), "no folder");
    snprintf(folder, sizeof(folder), "%s", absolute);
    free(absolute);
    snprintf(disk, sizeof(disk), "%s/disk", folder);
    snprintf(target, sizeof(target), "unix:/tmp/quire_kill_%d.s", (int)getpid());
    quire_policy_default(&policy);
    policy.page_tokens = PAGE;
    policy.window = PAGE;
    policy.sink_rows = policy.outlier_rows = 0;
    policy.key = policy.value = (struct quire_codec_spec){.codec = QUIRE_CODEC_RAW, .bits = 16};
    for (uint32_t i = 0; i < THREADS; i++) {
        clients[i].seed = seed + i;
        clients[i].next_salt = i + 1;
        for (uint32_t s = 0; s < SLOTS; s++) {
            slot_reset(&clients[i].slots[s]);
            snprintf(clients[i].slots[s].name, sizeof(clients[i].slots[s].name), "c%u/s%u", i,
                     s);
        }
    }
}

int main(int argc, char **argv)
{
    const char *wanted = argc > 1 ? argv[1] : getenv("QUIRE_KILLS");
    const char *given = getenv("QUIRE_SEED");
    const uint32_t kills = wanted ? (uint32_t)strtoul(wanted, NULL, 10) : KILLS;
    uint64_t operations = 0;

    setenv("GRPC_VERBOSITY", "NONE", 0);
    qr_log_configure(QR_LOG_ERROR, QR_LOG_TEXT, STDERR_FILENO);
    seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) * 1000003u;
    printf("QUIRE_SEED=%llu\n", (unsigned long long)seed);
    fflush(stdout);
    set_up();
    for (uint32_t k = 0; k < kills; k++) {
        const pid_t server = server_start();
        check_all();
        check_cap();
        run_until_killed(server);
        if (k % CHECK_EVERY == 0)
            check_offline();
        if ((k + 1) % 50 == 0) {
            printf("%u kills\n", k + 1);
            fflush(stdout);
        }
    }
    const pid_t last = server_start();
    check_all();
    for (uint32_t i = 0; i < THREADS; i++) {
        quire_client_close(&clients[i].client);
        operations += clients[i].operations;
    }
    server_kill(last);
    check_offline();
    unlink(target + 5);
    REQUIRE(nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0, "%s is not removed",
            folder);
    printf(
        "%u kills, %llu operations answered: nothing acknowledged is lost, nothing is wrong\n",
        kills, (unsigned long long)operations);
    return 0;
}
