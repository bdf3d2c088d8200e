/* The lab's switch (link.c, unchanged) on a clock that moves only when the test says so.
 *
 * It takes the arguments and commands of `link switch`, and two more:
 *   frame PORT HEX   the host at PORT sends this frame now
 *   until NS         let time pass; answered by the frames that arrived meanwhile: PORT:NS:HEX, or "none"
 *
 * The loop wakes when advance() asks it to, as the real one does on a machine that is never late.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int64_t virtual_time;
static int arrived;

static int virtual_clock(clockid_t id, struct timespec *t)
{
    (void)id;
    t->tv_sec = virtual_time / 1000000000, t->tv_nsec = virtual_time % 1000000000;
    return 0;
}

static ssize_t virtual_write(int port, const void *data, size_t len)
{
    printf("%s%d:%lld:", arrived++ ? " " : "", port, (long long)virtual_time);
    for (size_t i = 0; i < len; i++) printf("%02x", ((const unsigned char *)data)[i]);
    return len;
}

#define clock_gettime virtual_clock
#define write virtual_write
#define main switch_main
#include "link.c"
#undef main

static void send_frame(const char *s)
{
    static unsigned char data[MAX_FRAME];
    int port, used, len = 0;
    unsigned byte;
    if (sscanf(s, "frame %d %n", &port, &used) != 1 || port < 0 || port >= n_ports) { puts("error: bad frame"); return; }
    for (s += used; len < MAX_FRAME && sscanf(s, "%2x", &byte) == 1; s += 2) data[len++] = byte;
    enter(&ports[port], &ports[port].up, copy(data, len, port), now());    /* as receive() does */
    puts("ok");
}

static void pass_time(int64_t target)
{
    arrived = 0;
    for (int64_t next; (next = advance(now())) <= target;) virtual_time = next;
    virtual_time = target;
    puts(arrived ? "" : "none");
}

int main(int argc, char **argv)
{
    static char line[4 * MAX_FRAME];
    n_ports = argc - 4;
    ports = calloc(n_ports, sizeof *ports);
    for (int i = 0; i < n_ports; i++) {
        start_port(i, strtoull(argv[3], NULL, 10));
        ports[i].fd = i;
    }
    setvbuf(stdout, NULL, _IOFBF, 1 << 20);
    puts("ready");
    while (fflush(stdout), fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "frame ", 6)) send_frame(line);
        else if (!strncmp(line, "until ", 6)) pass_time(strtoll(line + 6, NULL, 10));
        else command(line);
    }
    return 0;
}
