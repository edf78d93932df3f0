/* SPDX-License-Identifier: Apache-2.0
 *
 * A block device beside a folder: pages on both, found again after a restart and by
 * the check; what already holds something is left alone, and so is another store's.
 * On loop devices, which need root; skipped without.
 */
#include "disk_sessions.h"

#include <linux/loop.h>
#include <sys/ioctl.h>

#include "storage/tier/disk_check.h"

#define CAP ((16u << 20) + 4096u)
#define DEVICE_BYTES (24u << 20)

static const struct test_session one = {
    .ns = 1, .number = 1, .lanes = 4, .blocks = 8, .dim = 64};

struct fixture {
    char *base;
    char folder[300], image[300], device[32];
    int loop_fd;
    struct qr_disk_config config;
    struct qr_disk *disk;
};

/* False: no loop devices here. */
static bool attach(struct fixture *f)
{
    const int control = open("/dev/loop-control", O_RDWR);
    const int image = open(f->image, O_RDWR | O_CREAT, 0600);

    assert_true(image >= 0);
    assert_int_equal(ftruncate(image, DEVICE_BYTES), 0);
    f->loop_fd = -1;
    for (int tries = 0; control >= 0 && f->loop_fd < 0 && tries < 20; tries++) {
        const int number = ioctl(control, LOOP_CTL_GET_FREE);
        snprintf(f->device, sizeof(f->device), "/dev/loop%d", number);
        const int fd = number >= 0 ? open(f->device, O_RDWR) : -1;
        if (fd >= 0 && ioctl(fd, LOOP_SET_FD, image) == 0)
            f->loop_fd = fd; /* else somebody else was faster */
        else if (fd >= 0)
            close(fd);
    }
    close(image);
    if (control >= 0)
        close(control);
    return f->loop_fd >= 0;
}

static void detach(struct fixture *f)
{
    assert_int_equal(ioctl(f->loop_fd, LOOP_CLR_FD, 0), 0);
    close(f->loop_fd);
}

static void setup(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    f->base = test_folder();
    snprintf(f->folder, sizeof(f->folder), "%s/folder", f->base);
    snprintf(f->image, sizeof(f->image), "%s/image", f->base);
    if (!attach(f)) {
        test_folder_remove(f->base);
        print_message("no loop devices here\n");
        skip();
    }
    f->config = (struct qr_disk_config){
        .folders = {f->folder, f->device}, .cap_bytes = {CAP, 0}, .count = 2, .create = true};
}

static void teardown(struct fixture *f)
{
    qr_disk_close(&f->disk);
    detach(f);
    test_folder_remove(f->base);
}

static void open_store(struct fixture *f)
{
    struct qr_error e = {0};
    const quire_status status = qr_disk_open(&f->config, NULL, NULL, &f->disk, &e);

    if (status != QUIRE_OK)
        print_message("%s\n", e.text);
    assert_ok(status);
}

static void pages_on_a_block_device_survive_a_restart(void **state)
{
    struct fixture f;
    struct qr_disk_stat stat;
    struct qr_disk_check_result result;
    (void)state;

    setup(&f);
    open_store(&f);
    test_put_session(f.disk, &one);
    qr_disk_close(&f.disk);
    f.config.create = false;
    open_store(&f);
    qr_disk_stat(f.disk, &stat);
    assert_int_equal(stat.pages_at_open, 32);
    assert_int_equal(stat.bad_entries, 0);
    assert_true(stat.device[1].slots > 0);
    assert_int_equal(stat.device[1].cap_bytes, DEVICE_BYTES);
    for (uint32_t block = 0; block < one.blocks; block++) {
        const struct qr_disk_page page = test_session_record(f.disk, &one, 1, block);
        uint8_t *bytes = aligned_alloc(64, (page.place.bytes + 63u) / 64 * 64);
        assert_ok(test_read(f.disk, &page.place, bytes, 0));
        assert_int_equal(((const struct qr_page_header *)(const void *)bytes)->checksum,
                         page.checksum);
        free(bytes);
    }
    qr_disk_close(&f.disk);
    const struct qr_disk_check_config check = {.folders = {f.folder, f.device}, .count = 2};
    assert_ok(qr_disk_check(&check, &result, NULL));
    assert_int_equal(result.bad, 0);
    assert_int_equal(result.verified, 32);
    teardown(&f);
}

static void a_full_device_is_full(void **state)
{
    struct fixture f;
    quire_status status = QUIRE_OK;
    struct qr_disk_stat stat;
    (void)state;

    setup(&f);
    f.config.cap_bytes[1] = 8u << 20;
    open_store(&f);
    for (uint64_t n = 0; status == QUIRE_OK; n += 8)
        status = test_put(f.disk, n, 8, 60000, NULL);
    assert_int_equal(status, QUIRE_EFULL);
    qr_disk_stat(f.disk, &stat);
    assert_int_equal(stat.device[1].cap_bytes, 8u << 20);
    assert_true(stat.device[1].file_bytes <= 8u << 20);
    teardown(&f);
}

static void refused(struct fixture *f, quire_status status, const char *advice)
{
    struct qr_error e = {0};

    assert_status(status, qr_disk_open(&f->config, NULL, NULL, &f->disk, &e));
    if (!strstr(e.text, advice))
        print_message("%s\n", e.text);
    assert_non_null(strstr(e.text, advice));
}

static void what_holds_something_is_left_alone(void **state)
{
    struct fixture f;
    char byte = 'x';
    (void)state;

    setup(&f);
    assert_int_equal(pwrite(f.loop_fd, &byte, 1, 65536 + 5), 1);
    assert_int_equal(fsync(f.loop_fd), 0);
    refused(&f, QUIRE_EMISMATCH, "blkdiscard");
    byte = 0;
    assert_int_equal(pread(f.loop_fd, &byte, 1, 65536 + 5), 1);
    assert_int_equal(byte, 'x');
    byte = 0; /* emptied: the start is carried on */
    assert_int_equal(pwrite(f.loop_fd, &byte, 1, 65536 + 5), 1);
    assert_int_equal(fsync(f.loop_fd), 0);
    open_store(&f);
    struct qr_error e;
    struct qr_disk_config other = f.config;
    char second[400];
    snprintf(second, sizeof(second), "%s/second", f.base);
    other.folders[0] = second;
    struct qr_disk *disk;
    assert_status(QUIRE_EUNAVAILABLE, qr_disk_open(&other, NULL, NULL, &disk, &e));
    assert_non_null(strstr(e.text, "in use"));
    qr_disk_close(&f.disk);
    assert_status(QUIRE_EMISMATCH, qr_disk_open(&other, NULL, NULL, &disk, &e));
    assert_non_null(strstr(e.text, "another store"));
    f.config.folders[0] = f.device;
    f.config.folders[1] = f.folder;
    f.config.cap_bytes[1] = CAP;
    refused(&f, QUIRE_EINVAL, "name a folder before it");
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_on_a_block_device_survive_a_restart),
        cmocka_unit_test(a_full_device_is_full),
        cmocka_unit_test(what_holds_something_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
