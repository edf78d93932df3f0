/* SPDX-License-Identifier: Apache-2.0
 *
 * Servers of our own for the time of one run. Must not know any protocol.
 */
#include "peers.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void pause_ms(long ms)
{
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

pid_t process_start(const char *scratch, const char *name, char *const argv[])
{
    char log[512];
    snprintf(log, sizeof(log), "%s/%s.log", scratch, name);
    const pid_t pid = fork();
    if (pid < 0) {
        perror("peers: fork");
        return -1;
    }
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd >= 0) {
        dup2(fd, STDOUT_FILENO);
        dup2(fd, STDERR_FILENO);
    }
    execvp(argv[0], argv);
    fprintf(stderr, "peers: %s: %s; deploy/install-deps --test installs it\n", argv[0],
            strerror(errno));
    _exit(127);
}

void process_stop(pid_t pid)
{
    if (pid <= 0)
        return;
    kill(pid, SIGTERM);
    for (int i = 0; i < 500; i++) {
        if (waitpid(pid, NULL, WNOHANG) != 0)
            return;
        pause_ms(10);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

uint16_t port_pick(void)
{
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    uint16_t port = 0;
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &length) == 0)
        port = ntohs(address.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

static int connect_once(const struct store *s)
{
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    snprintf(local.sun_path, sizeof(local.sun_path), "%s", s->socket_path);
    const struct sockaddr_in inet = {.sin_family = AF_INET,
                                     .sin_port = htons(s->port),
                                     .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int is_unix = s->transport == TRANSPORT_UNIX;
    const int fd = socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    const int failed = is_unix ? connect(fd, (const struct sockaddr *)&local, sizeof(local))
                               : connect(fd, (const struct sockaddr *)&inet, sizeof(inet));
    if (failed) {
        close(fd);
        return -1;
    }
    if (!is_unix)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return fd;
}

int store_connect(struct store *s)
{
    for (int i = 0; i < 1000; i++) {
        s->fd = connect_once(s);
        if (s->fd >= 0)
            return 0;
        if (s->server > 0 && waitpid(s->server, NULL, WNOHANG) != 0) {
            s->server = 0;
            fprintf(stderr, "peers: %s ended while it started; its log has why\n", s->name);
            return -1;
        }
        pause_ms(10);
    }
    fprintf(stderr, "peers: %s does not listen after 10 s\n", s->name);
    return -1;
}
