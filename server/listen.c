/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading addresses and claiming socket files.
 */
#include "listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static quire_status parse_unix(const char *text, struct qr_address *out, struct qr_error *e)
{
    const char *path = text + strlen("unix:");

    if (!strncmp(path, "//", 2))
        path += 2;
    if (path[0] != '/')
        return qr_error_set(e, QUIRE_EINVAL,
                            "listen: \"%.60s\" must name an absolute path: unix:/path", text);
    if (strlen(path) >= sizeof(out->path))
        return qr_error_set(e, QUIRE_EINVAL,
                            "listen: the path of \"%.60s...\" has %zu bytes, at most %zu fit "
                            "into a socket address",
                            text, strlen(path), sizeof(out->path) - 1);
    out->is_unix = true;
    snprintf(out->path, sizeof(out->path), "%s", path);
    snprintf(out->text, sizeof(out->text), "unix:%s", path);
    return QUIRE_OK;
}

static bool is_loopback(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;

    if (!strcmp(host, "localhost"))
        return true;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return (ntohl(v4.s_addr) >> 24) == 127;
    if (inet_pton(AF_INET6, host, &v6) == 1)
        return IN6_IS_ADDR_LOOPBACK(&v6);
    return false;
}

/* Split "host:port" or "[v6]:port". */
static bool split(const char *text, char host[QR_ADDRESS_MAX + 1], const char **port)
{
    const bool bracket = text[0] == '[';
    const char *end = bracket ? strstr(text, "]:") : strrchr(text, ':');

    if (!end || end - text > QR_ADDRESS_MAX)
        return false;
    const char *start = text + bracket;
    const size_t n = (size_t)(end - start);
    if (n == 0 || (!bracket && memchr(start, ':', n)))
        return false;
    memcpy(host, start, n);
    host[n] = 0;
    *port = end + (bracket ? 2 : 1);
    return true;
}

static bool read_port(const char *text, uint16_t *out)
{
    char *end;

    if (*text < '0' || *text > '9')
        return false;
    const unsigned long port = strtoul(text, &end, 10);
    if (*end || port > 65535)
        return false;
    *out = (uint16_t)port;
    return true;
}

quire_status qr_address_parse(const char *text, struct qr_address *out, struct qr_error *e)
{
    struct qr_address address = {0};
    const char *port = NULL;

    if (!strncmp(text, "unix:", 5)) {
        const quire_status status = parse_unix(text, &address, e);
        if (!status)
            *out = address;
        return status;
    }
    if (!split(text, address.host, &port) || !read_port(port, &address.port))
        return qr_error_set(
            e, QUIRE_EINVAL,
            "listen: \"%.60s\" must be unix:/path, host:port or [v6]:port with a "
            "port of 0 .. 65535",
            text);
    if (!is_loopback(address.host))
        return qr_error_set(
            e, QUIRE_EPERM,
            "listen: \"%.60s\" is not a loopback address; serving other "
            "machines needs TLS, which this version does not have. Use 127.0.0.1, "
            "[::1], localhost or unix:/path",
            text);
    snprintf(address.text, sizeof(address.text), "%.*s", QR_ADDRESS_MAX, text);
    *out = address;
    return QUIRE_OK;
}

/* True when a connection to the socket is refused: nobody listens any more. */
static bool is_stale(const char *path)
{
    struct sockaddr_un peer = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return false;
    memcpy(peer.sun_path, path, strlen(path) + 1);
    const bool refused =
        connect(fd, (struct sockaddr *)&peer, sizeof(peer)) != 0 && errno == ECONNREFUSED;
    close(fd);
    return refused;
}

quire_status qr_address_claim(const struct qr_address *address, struct qr_error *e)
{
    struct stat file;

    if (!address->is_unix || (lstat(address->path, &file) && errno == ENOENT))
        return QUIRE_OK;
    if (!S_ISSOCK(file.st_mode))
        return qr_error_set(
            e, QUIRE_EEXIST,
            "listen: %s exists and is no socket; remove it or name another path",
            address->text);
    if (!is_stale(address->path))
        return qr_error_set(
            e, QUIRE_EEXIST,
            "listen: another process listens on %s; stop it or name another path",
            address->text);
    if (unlink(address->path) && errno != ENOENT)
        return qr_error_set(e, QUIRE_EIO, "listen: cannot remove the stale socket of %s: %s",
                            address->text, strerror(errno));
    return QUIRE_OK;
}

void qr_address_release(const struct qr_address *address)
{
    if (address->is_unix && address->path[0])
        (void)unlink(address->path);
}
