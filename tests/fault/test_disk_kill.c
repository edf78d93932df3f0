/* SPDX-License-Identifier: Apache-2.0
 *
 * A writer is killed with SIGKILL at random moments, again and again on the same
 * store. The next one opens it and compares it with what the one before had
 * acknowledged: nothing acknowledged is lost, nothing is wrong, the cap is kept.
 *
 * usage: test_disk_kill [KILLS], or QUIRE_KILLS; QUIRE_SEED replays the choices (not the
 * moments). test_disk_kill write|check DIR MODEL, for power_cut: write for ever, or check once,
 * a store whose model is in a file
 */
#include "storage/base/log.h"
#include "tests/unit/tier/disk_pages.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#define CAP ((64u << 20) + 4096u)
#define NUMBERS 512u
#define LANES 4u
#define KILLS 200u
#define ROW_BYTES 512u
#define SEAL_TOKENS 32u

enum page_state { ABSENT, MAYBE, PRESENT };

struct lane_model {
    uint64_t acknowledged, tried; /* rows */
    uint64_t sealed;              /* rows that the index says are in pages */
    uint64_t sealed_tried;
};

/* Shared with the writer; what it has written here before the kill stays. */
struct model {
    volatile uint8_t pages[NUMBERS]; /* enum page_state */
    volatile struct lane_model lanes[LANES];
    volatile uint32_t checked; /* the writer has verified what it found */
    volatile uint64_t commits;
};

static struct model *model;
static const char *folder;
static uint64_t seed;
static struct qr_disk_place places[NUMBERS];

static uint64_t next_random(void)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return seed >> 20;
}

#define REQUIRE(condition, ...)                                                                \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            printf("not so: " #condition ": " __VA_ARGS__);                                    \
            printf("\n");                                                                      \
            fflush(stdout);                                                                    \
            _exit(1);                                                                          \
        }                                                                                      \
    } while (0)

/* ---- verify ----------------------------------------------------------------------------- */

static void note_place(void *arg, const uint8_t id[QR_HASH_BYTES],
                       const struct qr_disk_page *page)
{
    uint64_t number;

    (void)arg;
    memcpy(&number, id, sizeof(number));
    REQUIRE(number < NUMBERS, "page %llu", (unsigned long long)number);
    places[number] = page->place;
}

static void check_pages(struct qr_disk *disk)
{
    for (uint32_t n = 0; n < NUMBERS; n++) {
        const quire_status status = test_get(disk, n);
        REQUIRE(status == QUIRE_OK || status == QUIRE_ENOTFOUND, "page %u: %s", n,
                qr_status_name(status));
        REQUIRE(model->pages[n] != PRESENT || status == QUIRE_OK, "page %u is lost", n);
        REQUIRE(model->pages[n] != ABSENT || status == QUIRE_ENOTFOUND, "page %u is back", n);
        model->pages[n] = status == QUIRE_OK ? PRESENT : ABSENT;
    }
}

#define TAIL_MAX 65536u

/* Moved records come after younger ones, so rows are ticked off and counted at the end. */
struct found {
    uint64_t sealed[LANES], rows[LANES];
    bool seen[LANES][TAIL_MAX]; /* by distance from sealed */
};

static void fill_row(uint8_t *out, uint32_t lane, uint64_t position)
{
    test_page_fill(position * LANES + lane, out, ROW_BYTES);
}

static bool check_record(void *arg, const struct qr_tail_record *record)
{
    struct found *found = arg;
    uint8_t expected[ROW_BYTES];

    REQUIRE(record->lane < LANES && record->tokens == 1, "lane %u", record->lane);
    fill_row(expected, record->lane, record->position);
    REQUIRE(memcmp(expected, record->payload, ROW_BYTES) == 0, "row %llu is wrong",
            (unsigned long long)record->position);
    if (record->position < found->sealed[record->lane])
        return false;
    const uint64_t distance = record->position - found->sealed[record->lane];
    REQUIRE(distance < TAIL_MAX, "row %llu", (unsigned long long)record->position);
    found->seen[record->lane][distance] = true;
    return true;
}

static void check_lanes(struct qr_disk *disk)
{
    static struct found found;
    struct qr_tail_log_report report;

    for (uint32_t l = 0; l < LANES; l++) {
        const struct qr_disk_key key = qr_disk_key_lane((const uint8_t[16]){9}, l);
        uint8_t record[QR_DISK_LANE_RECORD_BYTES];
        struct qr_disk_lane lane = {0};
        size_t n;
        if (qr_disk_index_get(qr_disk_index_of(disk), &key, record, sizeof(record), &n) == 0)
            REQUIRE(qr_disk_lane_read(record, n, &lane) == QUIRE_OK, "lane %u", l);
        found.sealed[l] = found.rows[l] = (uint64_t)lane.sealed * SEAL_TOKENS;
        REQUIRE(found.sealed[l] >= model->lanes[l].sealed &&
                    found.sealed[l] <= model->lanes[l].sealed_tried,
                "lane %u sealed %llu", l, (unsigned long long)found.sealed[l]);
    }
    REQUIRE(qr_tail_log_replay(qr_disk_tail_log_of(disk), check_record, &found, &report,
                               NULL) == QUIRE_OK,
            "replay");
    REQUIRE(report.damaged == 0, "the log is damaged");
    for (uint32_t l = 0; l < LANES; l++) {
        while (found.seen[l][found.rows[l] - found.sealed[l]])
            found.rows[l]++;
        REQUIRE(found.rows[l] >= model->lanes[l].acknowledged &&
                    found.rows[l] <= model->lanes[l].tried,
                "lane %u has %llu rows, %llu were acknowledged", l,
                (unsigned long long)found.rows[l],
                (unsigned long long)model->lanes[l].acknowledged);
        model->lanes[l].acknowledged = model->lanes[l].tried = found.rows[l];
        model->lanes[l].sealed = model->lanes[l].sealed_tried = found.sealed[l];
    }
}

static void check_cap(void)
{
    char path[600];
    struct stat st;

    snprintf(path, sizeof(path), "%s/slabs", folder);
    REQUIRE(stat(path, &st) == 0 && (uint64_t)st.st_size <= CAP, "cap of %u bytes", CAP);
}

/* ---- write ------------------------------------------------------------------------------ */

static void put_some(struct qr_disk *disk)
{
    const uint32_t count = (uint32_t)(next_random() % 4 + 1);
    uint32_t first = (uint32_t)(next_random() % (NUMBERS - 4));
    struct qr_disk_place put[4];

    for (uint32_t i = 0; i < count; i++) {
        if (model->pages[first + i] != ABSENT)
            return;
    }
    for (uint32_t i = 0; i < count; i++)
        model->pages[first + i] = MAYBE;
    const quire_status status = test_put(disk, first, count, 60000, put);
    REQUIRE(status == QUIRE_OK || status == QUIRE_EFULL, "put: %s", qr_status_name(status));
    for (uint32_t i = 0; i < count; i++) {
        model->pages[first + i] = status == QUIRE_OK ? PRESENT : ABSENT;
        places[first + i] = put[i];
    }
}

static void delete_one(struct qr_disk *disk)
{
    const uint32_t n = (uint32_t)(next_random() % NUMBERS);
    struct qr_disk_batch batch = {0};
    uint8_t id[QR_HASH_BYTES];

    if (model->pages[n] != PRESENT)
        return;
    test_page_id(n, id);
    const struct qr_disk_key key = qr_disk_key_page(id);
    qr_disk_batch_delete(&batch, &key);
    struct qr_disk_commit commit = {.batch = &batch, .freed = &places[n], .freed_count = 1};
    model->pages[n] = MAYBE;
    const quire_status status = qr_disk_commit_wait(disk, &commit);
    REQUIRE(status == QUIRE_OK, "delete: %s", qr_status_name(status));
    model->pages[n] = ABSENT;
    qr_disk_batch_free(&batch);
}

static void append_rows(struct qr_disk *disk)
{
    const uint32_t l = (uint32_t)(next_random() % LANES);
    const uint64_t count = next_random() % 8 + 1;
    struct qr_disk_commit commit = {.tail = true};
    uint64_t sequence;

    model->lanes[l].tried = model->lanes[l].acknowledged + count;
    for (uint64_t i = 0; i < count; i++) {
        uint8_t row[ROW_BYTES];
        const struct qr_tail_record record = {.session = {9},
                                              .lane = l,
                                              .tokens = 1,
                                              .position = model->lanes[l].acknowledged + i,
                                              .payload = row,
                                              .payload_bytes = ROW_BYTES};
        fill_row(row, l, record.position);
        REQUIRE(qr_tail_log_append(qr_disk_tail_log_of(disk), &record, &sequence) == QUIRE_OK,
                "append");
    }
    const quire_status status = qr_disk_commit_wait(disk, &commit);
    REQUIRE(status == QUIRE_OK, "rows: %s", qr_status_name(status));
    model->lanes[l].acknowledged += count;
}

/* The lane record first, durable, then the rows may go. */
static void seal_lane(struct qr_disk *disk)
{
    const uint32_t l = (uint32_t)(next_random() % LANES);
    const struct qr_disk_key key = qr_disk_key_lane((const uint8_t[16]){9}, l);
    struct qr_disk_lane lane = {.sealed =
                                    (uint32_t)(model->lanes[l].acknowledged / SEAL_TOKENS)};
    const uint64_t rows = (uint64_t)lane.sealed * SEAL_TOKENS;
    struct qr_disk_batch batch = {0};
    uint8_t record[QR_DISK_LANE_RECORD_BYTES];

    if (rows == model->lanes[l].sealed)
        return;
    qr_disk_lane_write(&lane, record);
    qr_disk_batch_put(&batch, &key, record, sizeof(record));
    struct qr_disk_commit commit = {.batch = &batch};
    model->lanes[l].sealed_tried = rows;
    REQUIRE(qr_disk_commit_wait(disk, &commit) == QUIRE_OK, "seal");
    model->lanes[l].sealed = rows;
    qr_tail_log_drop(qr_disk_tail_log_of(disk), (const uint8_t[16]){9}, l, rows);
    qr_disk_batch_free(&batch);
}

static struct qr_disk *open_and_check(void)
{
    struct qr_disk *disk = NULL;
    struct qr_error e = {0};
    struct qr_disk_stat stat;
    const struct qr_disk_config config = {.folders = {folder},
                                          .cap_bytes = {CAP},
                                          .count = 1,
                                          .create = true,
                                          .no_uring = next_random() % 4 == 0,
                                          .tail_log_bytes = 1u << 20,
                                          .tail_segment_bytes = 64u << 10};

    REQUIRE(qr_disk_open(&config, note_place, NULL, &disk, &e) == QUIRE_OK, "%s", e.text);
    qr_disk_stat(disk, &stat);
    REQUIRE(stat.bad_entries == 0, "%llu bad entries", (unsigned long long)stat.bad_entries);
    check_cap();
    check_pages(disk);
    check_lanes(disk);
    model->checked = 1;
    return disk;
}

static void writer(void)
{
    struct qr_disk *disk = open_and_check();

    for (;;) {
        const uint64_t what = next_random() % 8;
        if (what < 3)
            put_some(disk);
        else if (what < 5)
            delete_one(disk);
        else if (what < 7)
            append_rows(disk);
        else
            seal_lane(disk);
        model->commits++;
    }
}

/* Kill it at a random moment after it has checked, or, one time in eight, at any moment. */
static void run_and_kill(uint32_t kill_number)
{
    const bool early = kill_number % 8 == 7;
    int status;

    model->checked = 0;
    const uint64_t child_seed = next_random();
    const pid_t child = fork();
    if (child == 0) {
        seed = child_seed;
        writer();
    }
    for (uint32_t i = 0; !early && !model->checked && i < 20000; i++) {
        if (waitpid(child, &status, WNOHANG) == child) {
            printf("the writer ended by itself before kill %u\n", kill_number);
            exit(1);
        }
        usleep(1000);
    }
    usleep((useconds_t)(next_random() % 60000));
    if (waitpid(child, &status, WNOHANG) == child) {
        printf("the writer ended by itself before kill %u\n", kill_number);
        exit(1);
    }
    (void)kill(child, SIGKILL);
    (void)waitpid(child, &status, 0);
}

static struct model *map_model(int fd)
{
    const int flags = MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0);
    void *at = mmap(NULL, sizeof(*model), PROT_READ | PROT_WRITE, flags, fd, 0);

    REQUIRE(at != MAP_FAILED, "no memory");
    return at;
}

static int run_once(const char *mode, const char *model_path)
{
    const int fd = open(model_path, O_RDWR | O_CREAT, 0600);

    REQUIRE(fd >= 0 && ftruncate(fd, sizeof(*model)) == 0, "%s", model_path);
    model = map_model(fd);
    if (strcmp(mode, "write") == 0)
        writer();
    struct qr_disk *disk = open_and_check();
    qr_disk_close(&disk);
    return 0;
}

static int run_kills(uint32_t kills)
{
    char *path = test_folder();

    folder = path;
    model = map_model(-1);
    for (uint32_t i = 0; i < kills; i++)
        run_and_kill(i);
    printf("%u kills in %llu commits: nothing acknowledged was lost, nothing was wrong\n",
           kills, (unsigned long long)model->commits);
    test_folder_remove(path);
    return model->commits > kills ? 0 : 1;
}

int main(int argc, char **argv)
{
    const char *given = getenv("QUIRE_SEED");

    seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    qr_log_configure(QR_LOG_ERROR, QR_LOG_TEXT, 2);
    if (argc == 4) {
        folder = argv[2];
        return run_once(argv[1], argv[3]);
    }
    printf("QUIRE_SEED=%llu\n", (unsigned long long)seed);
    fflush(stdout);
    const char *kills = argc > 1 ? argv[1] : getenv("QUIRE_KILLS");
    return run_kills(kills ? (uint32_t)strtoul(kills, NULL, 10) : KILLS);
}
