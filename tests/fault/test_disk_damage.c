/* SPDX-License-Identifier: Apache-2.0
 *
 * Damage to the files of a disk store is detected or harmless: a page cut at
 * every 512-byte border of its slot, a log record cut at every one of its own,
 * and random flipped bits in slabs, tail log and index. QUIRE_SEED replays.
 */
#include "tests/unit/tier/disk_pages.h"

#include <dirent.h>
#include <time.h>

#include "storage/tier/disk_class.h"

#define CAP ((64u << 20) + 4096u)
#define PAGES 48u
#define FLIPS 500u /* all together; QUIRE_FLIPS says another number */
#define SECTOR 512u

/* Two thirds in slabs, a fifth in the log, the rest in the index. */
static uint32_t slab_flips = FLIPS * 2 / 3, log_flips = FLIPS / 5, index_flips = FLIPS * 2 / 15;

struct fixture {
    char *base;
    struct qr_disk_config config;
    struct qr_disk *disk;
};

static uint64_t seed;

static uint64_t next_random(void)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return seed >> 20;
}

static void setup(struct fixture *f)
{
    f->base = test_folder();
    f->config = (struct qr_disk_config){.folders = {f->base},
                                        .cap_bytes = {CAP},
                                        .count = 1,
                                        .create = true,
                                        .tail_log_bytes = 4u << 20,
                                        .tail_segment_bytes = 1u << 20};
    assert_ok(qr_disk_open(&f->config, NULL, NULL, &f->disk, NULL));
}

static void teardown(struct fixture *f)
{
    qr_disk_close(&f->disk);
    test_folder_remove(f->base);
}

static int open_file(const struct fixture *f, const char *name)
{
    char path[600];
    snprintf(path, sizeof(path), "%s/%s", f->base, name);
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    return fd;
}

static struct qr_disk_page page_of(struct fixture *f, uint64_t number)
{
    uint8_t id[QR_HASH_BYTES], record[QR_DISK_PAGE_RECORD_BYTES];
    struct qr_disk_page page;
    size_t n;

    test_page_id(number, id);
    const struct qr_disk_key key = qr_disk_key_page(id);
    assert_ok(qr_disk_index_get(qr_disk_index_of(f->disk), &key, record, sizeof(record), &n));
    assert_ok(qr_disk_page_read(record, n, &page));
    return page;
}

/* Slots of one class in a region of the smallest store: 1 MiB each. */
static off_t page_offset(const struct qr_disk_page *page)
{
    const uint64_t slot_bytes = qr_disk_class_bytes(qr_disk_class(page->place.bytes));
    return (off_t)(QR_DISK_SLAB_START + page->place.region * (UINT64_C(1) << 20) +
                   page->place.slot * slot_bytes);
}

/* What a torn write leaves: the new page's first bytes, then what the slot held before. */
static void a_page_cut_at_any_sector_is_detected(void **state)
{
    struct fixture f;
    static const uint64_t numbers[] = {1, 2, 5};
    (void)state;

    setup(&f);
    assert_ok(test_put(f.disk, 0, 16, 60000, NULL));
    const int fd = open_file(&f, "slabs");
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        const struct qr_disk_page page = page_of(&f, numbers[i]);
        uint8_t *whole = malloc(page.place.bytes), *old = calloc(1, page.place.bytes);
        test_page_fill(numbers[i], whole, page.place.bytes);
        for (uint32_t cut = 0; cut < page.place.bytes; cut += SECTOR) {
            assert_true(pwrite(fd, old, page.place.bytes - cut, page_offset(&page) + cut) > 0);
            assert_status(QUIRE_ECORRUPT, test_get(f.disk, numbers[i]));
            assert_true(pwrite(fd, whole, page.place.bytes, page_offset(&page)) > 0);
        }
        assert_ok(test_get(f.disk, numbers[i]));
        free(whole);
        free(old);
    }
    close(fd);
    teardown(&f);
}

static void flipped_bits_in_slabs_are_detected_or_harmless(void **state)
{
    struct fixture f;
    uint32_t detected = 0;
    (void)state;

    setup(&f);
    for (uint32_t i = 0; i < PAGES; i += 16)
        assert_ok(test_put(f.disk, i, 16, 60000, NULL));
    const int fd = open_file(&f, "slabs");
    for (uint32_t i = 0; i < slab_flips; i++) {
        const uint64_t number = next_random() % PAGES;
        const struct qr_disk_page page = page_of(&f, number);
        const uint64_t slot_bytes = qr_disk_class_bytes(qr_disk_class(page.place.bytes));
        const uint64_t at = next_random() % slot_bytes;
        uint8_t byte;
        assert_int_equal(pread(fd, &byte, 1, page_offset(&page) + (off_t)at), 1);
        const uint8_t flipped = byte ^ (uint8_t)(1u << next_random() % 8);
        assert_int_equal(pwrite(fd, &flipped, 1, page_offset(&page) + (off_t)at), 1);
        const quire_status status = test_get(f.disk, number);
        assert_int_equal(status, at < page.place.bytes ? QUIRE_ECORRUPT : QUIRE_OK);
        detected += status == QUIRE_ECORRUPT;
        assert_int_equal(pwrite(fd, &byte, 1, page_offset(&page) + (off_t)at), 1);
    }
    print_message("slabs: %u of %u flips hit a page, each was detected\n", detected,
                  slab_flips);
    close(fd);
    teardown(&f);
}

/* ---- tail log --------------------------------------------------------------------------- */

#define RECORDS 6u
#define ROW_BYTES 5000u

static void fill_rows(uint8_t *out, uint64_t position)
{
    test_page_fill(position + 1000, out, ROW_BYTES);
}

static void append_records(struct fixture *f)
{
    static uint8_t rows[ROW_BYTES];

    for (uint32_t i = 0; i < RECORDS; i++) {
        const struct qr_tail_record record = {
            .tokens = 1, .position = i, .payload = rows, .payload_bytes = ROW_BYTES};
        uint64_t sequence;
        fill_rows(rows, i);
        assert_ok(qr_tail_log_append(qr_disk_tail_log_of(f->disk), &record, &sequence));
    }
    struct qr_disk_commit commit = {.tail = true};
    assert_ok(qr_disk_commit_wait(f->disk, &commit));
}

/* Bit i of what is seen: record i, whole and right. */
static bool check_record(void *arg, const struct qr_tail_record *record)
{
    static uint8_t rows[ROW_BYTES];
    uint64_t *seen = arg;

    assert_true(record->position < RECORDS);
    assert_int_equal(record->payload_bytes, ROW_BYTES);
    fill_rows(rows, record->position);
    assert_memory_equal(rows, record->payload, ROW_BYTES);
    *seen |= UINT64_C(1) << record->position;
    return true;
}

static uint64_t replay(struct fixture *f, struct qr_tail_log_report *report)
{
    uint64_t seen = 0;

    qr_disk_close(&f->disk);
    assert_ok(qr_disk_open(&f->config, NULL, NULL, &f->disk, NULL));
    assert_ok(
        qr_tail_log_replay(qr_disk_tail_log_of(f->disk), check_record, &seen, report, NULL));
    return seen;
}

static uint64_t first_records(uint64_t n)
{
    return (UINT64_C(1) << n) - 1;
}

static const uint32_t record_bytes = (80 + ROW_BYTES + 15) / 16 * 16;

static void a_log_cut_at_any_sector_ends_before_the_torn_record(void **state)
{
    struct fixture f;
    struct qr_tail_log_report report;
    static uint8_t contents[4096 + RECORDS * 6000], zeros[RECORDS * 6000];
    (void)state;

    setup(&f);
    append_records(&f);
    const int fd = open_file(&f, "tail/0000000000000001.log");
    const uint32_t end = 4096 + RECORDS * record_bytes;
    assert_int_equal(pread(fd, contents, end, 0), end);
    for (uint32_t cut = 4096 + 3 * record_bytes; cut < end; cut += SECTOR) {
        const uint32_t at = cut / SECTOR * SECTOR;
        assert_int_equal(pwrite(fd, zeros, end - at, at), end - at);
        const uint64_t whole = (at - 4096) / record_bytes;
        assert_int_equal(replay(&f, &report), first_records(whole));
        assert_int_equal(report.damaged, 0);
        const bool torn = (at - 4096) % record_bytes > 0;
        assert_int_equal(report.torn, torn);
        if (torn)
            assert_int_equal(report.torn_offset, 4096 + whole * record_bytes);
        assert_int_equal(pwrite(fd, contents, end, 0), end);
    }
    assert_int_equal(replay(&f, &report), first_records(RECORDS));
    close(fd);
    teardown(&f);
}

static void flipped_bits_in_the_log_are_detected_and_located(void **state)
{
    struct fixture f;
    struct qr_tail_log_report report;
    uint64_t skipped = 0;
    (void)state;

    setup(&f);
    append_records(&f);
    const int fd = open_file(&f, "tail/0000000000000001.log");
    for (uint32_t i = 0; i < log_flips; i++) {
        const uint64_t at = 4096 + next_random() % (RECORDS * record_bytes);
        const uint64_t hit = (at - 4096) / record_bytes;
        uint8_t byte;
        assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
        const uint8_t flipped = byte ^ (uint8_t)(1u << next_random() % 8);
        assert_int_equal(pwrite(fd, &flipped, 1, (off_t)at), 1);
        const uint64_t seen = replay(&f, &report);
        if (report.skipped == 1) /* only the one that was hit is lost */
            assert_int_equal(seen, first_records(RECORDS) & ~(UINT64_C(1) << hit));
        else
            assert_int_equal(seen, first_records(hit));
        skipped += report.skipped;
        assert_int_equal(report.torn, 1);
        assert_int_equal(report.torn_offset, 4096 + hit * record_bytes);
        assert_int_equal(report.damaged, hit < RECORDS - 1);
        assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    }
    print_message("log: %u flips, each was detected and located; %llu cost one record alone\n",
                  log_flips, (unsigned long long)skipped);
    close(fd);
    teardown(&f);
}

/* ---- index ------------------------------------------------------------------------------ */

/* A random file of the index, large ones more often. */
static bool pick_index_file(const struct fixture *f, char *out, size_t size,
                            uint64_t *bytes_out)
{
    char folder[500];
    uint64_t total = 0;
    struct dirent *entry;
    bool found = false;

    snprintf(folder, sizeof(folder), "%s/index", f->base);
    DIR *listing = opendir(folder);
    assert_non_null(listing);
    while ((entry = readdir(listing)) != NULL) {
        char path[800];
        struct stat st;
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] == '.' || stat(path, &st) != 0 || st.st_size == 0 ||
            strncmp(entry->d_name, "LOG", 3) == 0)
            continue;
        total += (uint64_t)st.st_size;
        if (next_random() % total < (uint64_t)st.st_size) {
            snprintf(out, size, "%s", path);
            *bytes_out = (uint64_t)st.st_size;
            found = true;
        }
    }
    closedir(listing);
    return found;
}

static quire_status look_at_all(struct fixture *f, uint32_t *lost)
{
    for (uint64_t n = 0; n < PAGES; n++) {
        const quire_status status = test_get(f->disk, n); /* wrong bytes end the test */
        if (status == QUIRE_ECORRUPT || status == QUIRE_EIO || status == QUIRE_EUNSUPPORTED)
            return status;
        *lost += status == QUIRE_ENOTFOUND;
    }
    return QUIRE_OK;
}

/* The store is copied, so that what RocksDB makes of the damage does not stay. */
static void flipped_bits_in_the_index_never_give_wrong_bytes(void **state)
{
    struct fixture f;
    uint32_t detected = 0, harmless = 0, lost = 0;
    char copy[600], command[1400];
    (void)state;

    setup(&f);
    for (uint32_t i = 0; i < PAGES; i += 16)
        assert_ok(test_put(f.disk, i, 16, 20000, NULL));
    qr_disk_close(&f.disk);
    snprintf(copy, sizeof(copy), "%s-copy", f.base);
    snprintf(command, sizeof(command), "rm -rf '%s' && cp -r --sparse=always '%s' '%s'", copy,
             f.base, copy);
    for (uint32_t i = 0; i < index_flips; i++) {
        struct fixture damaged = {.base = copy, .config = f.config};
        char path[800];
        uint64_t bytes = 1;
        uint8_t byte;
        struct qr_error e;
        assert_int_equal(system(command), 0);
        damaged.config.folders[0] = copy;
        assert_true(pick_index_file(&damaged, path, sizeof(path), &bytes));
        const int fd = open(path, O_RDWR);
        const off_t at = (off_t)(next_random() % bytes);
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= (uint8_t)(1u << next_random() % 8);
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        close(fd);
        uint32_t lost_now = 0;
        quire_status status = qr_disk_open(&damaged.config, NULL, NULL, &damaged.disk, &e);
        if (status == QUIRE_OK)
            status = look_at_all(&damaged, &lost_now);
        else
            assert_null(strchr(e.text, '\n'));
        detected += status != QUIRE_OK;
        harmless += status == QUIRE_OK && lost_now == 0;
        lost += status == QUIRE_OK && lost_now > 0;
        qr_disk_close(&damaged.disk);
    }
    print_message(
        "index: of %u flips %u detected, %u harmless, %u cut the end of RocksDB's log "
        "(pages missing, none wrong)\n",
        index_flips, detected, harmless, lost);
    test_folder_remove(strdup(copy));
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_page_cut_at_any_sector_is_detected),
        cmocka_unit_test(flipped_bits_in_slabs_are_detected_or_harmless),
        cmocka_unit_test(a_log_cut_at_any_sector_ends_before_the_torn_record),
        cmocka_unit_test(flipped_bits_in_the_log_are_detected_and_located),
        cmocka_unit_test(flipped_bits_in_the_index_never_give_wrong_bytes),
    };
    const char *given = getenv("QUIRE_SEED"), *flips = getenv("QUIRE_FLIPS");
    if (flips) {
        const uint32_t all = (uint32_t)strtoul(flips, NULL, 10);
        slab_flips = all * 2 / 3;
        log_flips = all / 5;
        index_flips = all - slab_flips - log_flips;
    }
    seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("QUIRE_SEED=%llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
