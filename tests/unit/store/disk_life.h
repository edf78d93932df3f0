/* SPDX-License-Identifier: Apache-2.0
 *
 * Lives of a store with a disk: each is a child process that ends by _exit, as a
 * kill would, on the folder that the one before left.
 */
#ifndef QR_STORE_DISK_LIFE_H
#define QR_STORE_DISK_LIFE_H

#include "fixture.h"

#include <ftw.h>
#include <sys/wait.h>

#include "storage/store/durable.h"

#define BUDGET (16u << 20)
#define CAP (512u << 20)

static char life_folder[256];
static uint64_t life_budget_bytes = BUDGET;

static inline int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static inline void start(struct fixture *f)
{
    struct qr_store_disk_config disk = {.count = 1, .tail_log_bytes = 96u << 20};
    struct qr_store_config config = fixture_config(life_budget_bytes);

    disk.folders[0] = life_folder;
    disk.cap_bytes[0] = CAP;
    disk.tail_segment_bytes = 4u << 20;
    config.disk = &disk;
    fixture_start_with(f, &config);
}

/* A life of the store that ends without warning. */
static inline void life(void (*part)(struct fixture *f))
{
    int status;
    fflush(NULL);
    const pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        struct fixture f;
        setenv("CMOCKA_TEST_ABORT", "1", 1);
        start(&f);
        part(&f);
        fflush(NULL);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static inline int set_up(void **state)
{
    const char *base = getenv("QUIRE_DISK_DIR");
    (void)state;

    snprintf(life_folder, sizeof(life_folder), "%s/quire_store_XXXXXX",
             base                     ? base
             : getenv("QUIRE_BINARY") ? getenv("QUIRE_BINARY")
                                      : "/tmp");
    return mkdtemp(life_folder) ? 0 : -1;
}

static inline int tear_down(void **state)
{
    (void)state;
    return nftw(life_folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static inline quire_status append_durably(struct fixture *f, const struct qr_session_info *s,
                                          uint64_t position, uint32_t tokens, uint32_t salt)
{
    struct qr_append append = fixture_all(s, position, tokens);
    struct qr_append_result result;

    struct qr_error e = {0};

    append.durable = true;
    const quire_status status = fixture_append_as(f, &append, salt, &result, &e);
    if (status != QUIRE_OK)
        print_message("at %llu: %s\n", (unsigned long long)position, e.text);
    return status;
}

static inline struct fixture_seen fetch(struct fixture *f, const char *name, uint64_t tokens,
                                        uint32_t salt)
{
    struct qr_session_info info;

    assert_ok(qr_session_info(f->store, f->ns, name, &info, NULL));
    assert_int_equal(info.length, tokens);
    return fixture_fetch_all(f, &info, 0, tokens, salt);
}

static inline void check(struct fixture *f, const char *name, uint64_t tokens, uint32_t salt)
{
    const struct fixture_seen seen = fetch(f, name, tokens, salt);

    assert_int_equal(seen.missing + seen.corrupt, 0);
    assert_int_equal(seen.tokens, 2 * tokens); /* lanes */
}

#endif
