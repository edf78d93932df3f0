/* SPDX-License-Identifier: Apache-2.0
 *
 * What a store of many pages costs before it holds one byte of them: resident
 * memory of a process that has it open, a page, and how long it takes to open with
 * nothing cached. The pages are index entries alone; the slab file is a hole of
 * their size. Each size is opened by a process of its own.
 */
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "disk_bench.h"
#include "storage/tier/disk_class.h"

#define BATCH 2000u
#define PAGE_BYTES 100032u
#define REGION_BYTES (UINT64_C(256) << 20)
#define RAM_ALLOWED 64.0 /* bytes a page */

struct opened {
    double seconds, cpu_seconds;
    uint64_t pages, resident_before, resident, ram_bytes;
};

static uint64_t slots_a_region(void)
{
    return REGION_BYTES / qr_disk_class_bytes(qr_disk_class(PAGE_BYTES));
}

static uint64_t slab_bytes(uint64_t pages)
{
    return QR_DISK_SLAB_START + (pages / slots_a_region() + 64) * REGION_BYTES;
}

static struct qr_disk_config config_of(const char *folder, uint64_t pages)
{
    return (struct qr_disk_config){
        .folders = {folder}, .cap_bytes = {slab_bytes(pages)}, .count = 1, .create = true};
}

static void add_page(struct qr_disk_batch *batch, uint64_t number)
{
    const uint64_t id[4] = {(number + 1) * UINT64_C(0x9E3779B97F4A7C15), number, 0, 0};
    const struct qr_disk_key key = qr_disk_key_page((const uint8_t *)id);
    const struct qr_disk_page page = {.place = {0, (uint32_t)(number / slots_a_region()),
                                                (uint32_t)(number % slots_a_region()),
                                                PAGE_BYTES},
                                      .checksum = id[0],
                                      .heads = 8};
    uint8_t record[QR_DISK_PAGE_RECORD_BYTES];

    qr_disk_page_write(&page, record);
    qr_disk_batch_put(batch, &key, record, sizeof(record));
}

static void fill(const char *folder, uint64_t pages)
{
    const struct qr_disk_config config = config_of(folder, pages);
    struct qr_disk_batch batch = {0};
    const struct qr_disk_batch *one = &batch;
    struct qr_disk *disk;
    char path[600];

    must(qr_disk_open(&config, NULL, NULL, &disk, NULL) == QUIRE_OK, "make the store");
    for (uint64_t first = 0; first < pages; first += BATCH) {
        qr_disk_batch_clear(&batch);
        for (uint64_t i = first; i < first + BATCH && i < pages; i++)
            add_page(&batch, i);
        must(qr_disk_index_write(qr_disk_index_of(disk), &one, 1, NULL) == QUIRE_OK, "write");
    }
    qr_disk_batch_free(&batch);
    qr_disk_close(&disk);
    (void)snprintf(path, sizeof(path), "%s/slabs", folder);
    must(truncate(path, (off_t)slab_bytes(pages)) == 0, "make the slab file's hole");
}

/* As cold as one may make it without being root: nothing of it in the page cache. */
static int forget_one(const char *path, const struct stat *st, int kind, struct FTW *walk)
{
    (void)st;
    (void)walk;
    if (kind != FTW_F)
        return 0;
    const int fd = open(path, O_RDONLY);
    must(fd >= 0 && fsync(fd) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0,
         "forget a file's pages");
    (void)close(fd);
    return 0;
}

/* Anonymous memory: file pages that are mapped belong to the code, not to the store. */
static uint64_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[128];
    unsigned long long kib = 0;

    must(file != NULL, "/proc/self/status");
    while (fgets(line, sizeof(line), file))
        (void)sscanf(line, "RssAnon: %llu", &kib);
    (void)fclose(file);
    return kib << 10;
}

static double cpu_seconds(void)
{
    struct timespec spent;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
    return (double)spent.tv_sec + (double)spent.tv_nsec * 1e-9;
}

/* What the ring's buffers and threads take is the same for any number of pages: a store that is
 * empty is taken off. */
static struct opened open_here(const char *folder, uint64_t pages)
{
    const struct qr_disk_config config = config_of(folder, pages);
    struct opened out = {.resident_before = resident_bytes()};
    struct qr_disk_stat stat;
    struct qr_disk *disk;
    struct qr_error e = {0};

    const double start = seconds(), cpu_start = cpu_seconds();
    const quire_status status = qr_disk_open(&config, NULL, NULL, &disk, &e);
    out.seconds = seconds() - start;
    out.cpu_seconds = cpu_seconds() - cpu_start;
    if (status != QUIRE_OK)
        fprintf(stderr, "%s\n", e.text);
    must(status == QUIRE_OK, "open the store");
    qr_disk_stat(disk, &stat);
    out.resident = resident_bytes();
    out.pages = stat.pages_at_open;
    out.ram_bytes = stat.index.ram_bytes;
    qr_disk_close(&disk);
    return out;
}

static struct opened open_apart(const char *folder, uint64_t pages)
{
    struct opened out = {0};
    int ends[2], status = 1;

    must(nftw(folder, forget_one, 16, FTW_PHYS) == 0 && pipe(ends) == 0, "prepare");
    const pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        out = open_here(folder, pages);
        must(write(ends[1], &out, sizeof(out)) == sizeof(out), "tell");
        _exit(0);
    }
    must(read(ends[0], &out, sizeof(out)) == sizeof(out), "hear");
    must(waitpid(child, &status, 0) == child && status == 0, "a process that opens the store");
    (void)close(ends[0]);
    (void)close(ends[1]);
    return out;
}

void measure_ram(const char *folder, uint64_t pages)
{
    char store[512], empty[512];

    (void)snprintf(store, sizeof(store), "%s/ram%llu", folder, (unsigned long long)pages);
    (void)snprintf(empty, sizeof(empty), "%s/empty%llu", folder, (unsigned long long)pages);
    fill(empty, 0);
    fill(store, pages);
    const struct opened none = open_apart(empty, pages), all = open_apart(store, pages);
    must(all.pages == pages, "every page at open");
    const double grown = (double)all.resident - (double)all.resident_before -
                         ((double)none.resident - (double)none.resident_before);
    printf("index of %8llu pages: %5.1f B a page resident (%.2f of the %.0f allowed; RocksDB "
           "says %.1f), open %.2f s cold, of which %.2f s of work: %.2f and %.2f of what 2 s "
           "for a million allow (an "
           "empty store: %.2f s)\n",
           (unsigned long long)pages, grown / (double)pages,
           grown / (double)pages / RAM_ALLOWED, RAM_ALLOWED,
           (double)all.ram_bytes / (double)pages, all.seconds, all.cpu_seconds,
           all.seconds / (2e-6 * (double)pages), all.cpu_seconds / (2e-6 * (double)pages),
           none.seconds);
}
