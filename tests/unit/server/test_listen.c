/* SPDX-License-Identifier: Apache-2.0
 *
 * Addresses: only loopback and unix sockets may be bound, and a socket file is
 * replaced exactly when nobody listens on it.
 */
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/listen.h"
#include "tests/test.h"

static void good_addresses_are_read(void **state)
{
    static const struct {
        const char *text, *host;
        int port;
    } cases[] = {{"127.0.0.1:7440", "127.0.0.1", 7440},
                 {"127.255.0.9:0", "127.255.0.9", 0},
                 {"[::1]:65535", "::1", 65535},
                 {"localhost:1", "localhost", 1}};
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct qr_address address;
        assert_ok(qr_address_parse(cases[i].text, &address, NULL));
        assert_false(address.is_unix);
        assert_string_equal(address.host, cases[i].host);
        assert_int_equal(address.port, cases[i].port);
        assert_string_equal(address.text, cases[i].text);
    }
}

static void bad_addresses_are_refused(void **state)
{
    static const struct {
        const char *text;
        quire_status status;
        const char *message;
    } cases[] = {
        {"0.0.0.0:7440", QUIRE_EPERM, "TLS"},
        {"[::]:7440", QUIRE_EPERM, "TLS"},
        {"10.0.0.1:7440", QUIRE_EPERM, "TLS"},
        {"example.com:7440", QUIRE_EPERM, "TLS"},
        {"128.0.0.1:1", QUIRE_EPERM, "TLS"},
        {"localhost", QUIRE_EINVAL, "must be unix:/path, host:port"},
        {":7440", QUIRE_EINVAL, "must be"},
        {"localhost:", QUIRE_EINVAL, "must be"},
        {"localhost:65536", QUIRE_EINVAL, "must be"},
        {"localhost:-1", QUIRE_EINVAL, "must be"},
        {"localhost:1x", QUIRE_EINVAL, "must be"},
        {"::1:7440", QUIRE_EINVAL, "must be"},
        {"[::1:7440", QUIRE_EINVAL, "must be"},
        {"", QUIRE_EINVAL, "must be"},
        {"unix:", QUIRE_EINVAL, "absolute path"},
        {"unix:here.sock", QUIRE_EINVAL, "absolute path"},
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct qr_address address;
        struct qr_error e = {0};
        const quire_status status = qr_address_parse(cases[i].text, &address, &e);
        if (status != cases[i].status || !strstr(e.text, cases[i].message))
            fail_msg("%s: status %d, \"%s\"", cases[i].text, status, e.text);
    }
}

static void a_long_path_is_refused(void **state)
{
    char text[200] = "unix:/";
    struct qr_address address;
    struct qr_error e;
    (void)state;

    memset(text + 6, 'x', 107);
    assert_status(QUIRE_EINVAL, qr_address_parse(text, &address, &e));
    assert_non_null(strstr(e.text, "107"));
    text[5 + 107] = 0;
    assert_ok(qr_address_parse(text, &address, &e));
}

static int bind_socket(const char *path)
{
    struct sockaddr_un self = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    snprintf(self.sun_path, sizeof(self.sun_path), "%s", path);
    assert_ok(bind(fd, (struct sockaddr *)&self, sizeof(self)));
    assert_ok(listen(fd, 1));
    return fd;
}

static void only_a_stale_socket_is_replaced(void **state)
{
    char folder[] = "/tmp/quire-listen-XXXXXX", text[64];
    struct qr_address address;
    struct qr_error e;
    (void)state;

    assert_non_null(mkdtemp(folder));
    snprintf(text, sizeof(text), "unix:%s/s", folder);
    assert_ok(qr_address_parse(text, &address, &e));
    assert_ok(qr_address_claim(&address, &e));

    const int fd = bind_socket(address.path);
    assert_status(QUIRE_EEXIST, qr_address_claim(&address, &e));
    assert_non_null(strstr(e.text, "another process listens"));
    close(fd);
    assert_ok(qr_address_claim(&address, &e));
    assert_int_not_equal(access(address.path, F_OK), 0);

    FILE *file = fopen(address.path, "w");
    assert_non_null(file);
    fclose(file);
    assert_status(QUIRE_EEXIST, qr_address_claim(&address, &e));
    assert_non_null(strstr(e.text, "is no socket"));
    assert_ok(unlink(address.path));
    assert_ok(rmdir(folder));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_addresses_are_read),
        cmocka_unit_test(bad_addresses_are_refused),
        cmocka_unit_test(a_long_path_is_refused),
        cmocka_unit_test(only_a_stale_socket_is_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
