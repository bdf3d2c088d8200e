/* link.c - user-space Ethernet switch whose ports are emulated links.
 *
 *   link switch PARENT SEED NETNS...   one port per network namespace, from 0
 *   link guard PARENT                  copies stdin to stdout; see guard() below
 *
 * In each namespace the switch makes a TAP device "eth0".  A frame sent by host a
 * to host b passes two links, a's upward and b's downward.  Each direction of a
 * link is a queue feeding a serialiser of the link's rate, then the coins, then a
 * delay line:
 *
 *   eth0 of a -> queue -> rate -> coins -> delay -> switch (may b hear a?)
 *             -> queue -> rate -> coins -> delay -> eth0 of b
 *
 * The downward queue is bounded and drops from its tail.  The upward one is not:
 * lab.py bounds it with a qdisc on eth0, which holds senders back as a real
 * device does.  Times are computed from when a frame was due, not from when this
 * process woke up, so that being late does not add up.
 *
 * Commands on stdin, one per line; each is answered by one line on stdout:
 *   set PORT RATE_BIT_S DELAY_NS JITTER_NS LOSS BURST QUEUE_BYTES   (rate 0: unlimited)
 *   noise PORT DUPLICATE FLIP    probabilities of doubling, and of flipping one payload bit
 *   stall PORT NS                nothing leaves the link for so long, then everything
 *   cut PORT | restore PORT      a cut link silently loses everything
 *   allow PORT 0110...           which ports hear this one; '0' is silence
 *   stat PORT  ->  up_frames up_bytes down_frames down_bytes lost overflowed
 *                  duplicated flipped refused
 * It ends, and its devices vanish, at the end of stdin or of process PARENT.
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

#define MAX_FRAME 9216
#define MAX_HELD (512u << 20)  /* bytes of frames in flight, all links together */
#define BATCH 64               /* frames read from one port in one pass */
#define QUEUED 10000           /* frames that a device holds for its reader at the most, see namespace.py */
#define PASS 100000            /* under load, at most one pass in so many ns */
#define NEVER INT64_MAX

struct frame {
    struct frame *next;
    int64_t due;               /* when it leaves the delay line, ns */
    int from, len;
    unsigned char data[];
};

struct dir {                   /* one direction of one link */
    struct frame *head, *tail;
    int64_t free_at;           /* when the serialiser is idle again, ns */
    uint64_t frames, bytes;
    uint64_t seen;             /* frames that tossed coins */
    uint64_t seed;
    int in_burst;
};

static struct port {
    int fd, is_cut;
    double rate, loss, burst;  /* bit/s, probability, mean frames lost in a row */
    double duplicate, flip;    /* probabilities */
    int64_t delay, jitter;     /* ns */
    int64_t queue;             /* bytes */
    int64_t stalled;           /* nothing leaves before this time, ns */
    char *hears;               /* hears[i]: whether port i gets frames of this one */
    struct dir up, down;
    uint64_t lost, overflowed, duplicated, flipped, refused;
} *ports;
static int n_ports;
static size_t held;

static void die(const char *what) { perror(what); exit(1); }

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static uint64_t mix(uint64_t z)        /* the finaliser of splitmix64 */
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* A coin is a function of the seed, the direction, the number of the frame in it
 * and what is decided, and of nothing else: other links, or settings changed on
 * the way, do not move the coins of later frames. */
enum coin { LOSS, JITTER, DUPLICATE, FLIP, WHICH, COINS };

static double toss(const struct dir *d, enum coin what)        /* in [0, 1) */
{
    uint64_t z = mix(d->seed + (d->seen * COINS + what) * 0x9e3779b97f4a7c15u);
    return (z >> 11) * 0x1p-53;
}

static void drop(struct frame *f)
{
    held -= sizeof *f + f->len;
    free(f);
}

static struct frame *copy(const void *data, int len, int from)
{
    struct frame *f = held < MAX_HELD ? malloc(sizeof *f + len) : NULL;
    if (!f) return NULL;
    held += sizeof *f + len;
    f->from = from;
    f->len = len;
    memcpy(f->data, data, len);
    return f;
}

/* Gilbert and Elliott's chain of two states: inside a burst everything is lost.
 * It leaves a burst with 1/burst, and enters one as often as gives `loss` overall. */
static int is_lost(const struct port *p, struct dir *d)
{
    if (p->loss <= 0) return 0;
    double u = toss(d, LOSS);
    if (p->burst <= 1 || p->loss >= 1) return u < p->loss;
    double leave = 1 / p->burst, begin = p->loss * leave / (1 - p->loss);
    return d->in_burst = u < (d->in_burst ? 1 - leave : begin);
}

/* Flips one bit behind the IPv4 and TCP or UDP headers; checksums stay as they were. */
static int flip(struct dir *d, struct frame *f)
{
    unsigned char *s = f->data;
    if (f->len < 42 || s[12] != 8 || s[13] != 0) return 0;
    int start = 14 + (s[14] & 15) * 4;
    if (start + 20 > f->len && s[23] == 6) return 0;
    start += s[23] == 6 ? (s[start + 12] >> 4) * 4 : 8;
    if (start >= f->len) return 0;
    int bit = toss(d, WHICH) * (f->len - start) * 8;
    s[start + bit / 8] ^= 1 << bit % 8;
    return 1;
}

static void append(struct port *p, struct dir *d, struct frame *f, int64_t due)
{
    f->due = due > p->stalled ? due : p->stalled;
    f->next = NULL;
    d->frames++;
    d->bytes += f->len;
    if (d->head) {             /* stay in order, whatever jitter or a new delay say */
        if (f->due < d->tail->due) f->due = d->tail->due;
        d->tail->next = f;
    } else
        d->head = f;
    d->tail = f;
}

/* The frame reaches this end of the link at time t: queue it, or lose it. */
static void enter(struct port *p, struct dir *d, struct frame *f, int64_t t)
{
    if (p->is_cut) { drop(f); return; }
    if (p->rate > 0) {
        if (d->free_at < t) d->free_at = t;
        double waiting = (d->free_at - t) * p->rate / 8e9;      /* bytes */
        if (d == &p->down && waiting > 0 && waiting + f->len > p->queue) {
            p->overflowed++; drop(f); return;
        }
        t = d->free_at += (int64_t)(f->len * 8e9 / p->rate);
    }
    d->seen++;
    if (is_lost(p, d)) { p->lost++; drop(f); return; }
    if (p->flip > 0 && toss(d, FLIP) < p->flip) p->flipped += flip(d, f);
    int64_t delay = p->delay;
    if (p->jitter) delay += (int64_t)((2 * toss(d, JITTER) - 1) * p->jitter);
    int64_t due = t + (delay > 0 ? delay : 0);
    struct frame *twin = NULL;
    if (p->duplicate > 0 && toss(d, DUPLICATE) < p->duplicate) twin = copy(f->data, f->len, f->from);
    append(p, d, f, due);
    if (twin) { p->duplicated++; append(p, d, twin, due); }
}

/* The frame reached the switch: pass it to one port, or to all the others. */
static void switched(struct frame *f)
{
    unsigned char *mac = f->data;  /* hosts have 02:6e:6c:00:hi:lo, see host.py */
    struct port *from = &ports[f->from];
    if (!(mac[0] & 1)) {
        int to = mac[4] << 8 | mac[5];
        if (to >= n_ports || to == f->from) drop(f);
        else if (!from->hears[to]) { from->refused++; drop(f); }
        else enter(&ports[to], &ports[to].down, f, f->due);
        return;
    }
    for (int i = 0; i < n_ports; i++) {
        struct frame *c = i == f->from || !from->hears[i] ? NULL : copy(f->data, f->len, f->from);
        if (c) enter(&ports[i], &ports[i].down, c, f->due);
    }
    drop(f);
}

static void deliver(struct port *p, struct frame *f)
{
    struct port *from = &ports[f->from];
    if (!from->hears[p - ports]) from->refused++;   /* parted while under way */
    else if (write(p->fd, f->data, f->len) < 0) p->overflowed++;
    drop(f);
}

/* Move every frame that is due, in order of time; return when to come again, or
 * NEVER.  What reaches the switch can wait until the shortest delay line after
 * it would be passed: being late there delays no frame. */
static int64_t advance(int64_t t)
{
    int64_t ahead = NEVER;
    for (int i = 0; i < n_ports; i++) {
        int64_t least = ports[i].delay - ports[i].jitter;
        if (least < ahead) ahead = least > 0 ? least : 0;
    }
    for (;;) {
        int64_t next = NEVER;
        struct port *p = NULL;
        struct dir *d = NULL;
        for (int i = 0; i < n_ports; i++) {
            struct dir *u = &ports[i].up, *w = &ports[i].down;
            if (u->head && (!d || u->head->due < d->head->due)) p = &ports[i], d = u;
            if (w->head && (!d || w->head->due < d->head->due)) p = &ports[i], d = w;
            if (u->head && u->head->due + ahead < next) next = u->head->due + ahead;
            if (w->head && w->head->due < next) next = w->head->due;
        }
        if (!d || d->head->due > t) return next;
        struct frame *f = d->head;
        d->head = f->next;
        if (d == &p->up) switched(f);
        else deliver(p, f);
    }
}

static void receive(int i, int most)
{
    static unsigned char buf[MAX_FRAME];
    for (int k = 0; k < most; k++) {
        int len = read(ports[i].fd, buf, sizeof buf);
        if (len < 14) return;
        struct frame *f = copy(buf, len, i);
        if (f) enter(&ports[i], &ports[i].up, f, now());
    }
}

static void flush(struct dir *d)
{
    while (d->head) { struct frame *f = d->head; d->head = f->next; drop(f); }
}

static void hold(struct dir *d, int64_t until)
{
    for (struct frame *f = d->head; f; f = f->next)
        if (f->due < until) f->due = until;
}

static int set(struct port *p, const char *s)
{
    double rate, loss, burst;
    long long delay, jitter, queue;
    if (sscanf(s, "%lf %lld %lld %lf %lf %lld", &rate, &delay, &jitter, &loss, &burst, &queue) != 6) return 0;
    p->rate = rate, p->delay = delay, p->jitter = jitter, p->loss = loss, p->burst = burst, p->queue = queue;
    p->up.free_at = p->down.free_at = 0;
    p->up.in_burst = p->down.in_burst = 0;
    return 1;
}

static int allow(struct port *p, const char *s)
{
    while (*s == ' ') s++;
    if ((int)strspn(s, "01") != n_ports) return 0;
    for (int i = 0; i < n_ports; i++) p->hears[i] = s[i] == '1';
    return 1;
}

static int obey(struct port *p, const char *verb, const char *rest)
{
    long long ns;
    if (!strcmp(verb, "set")) return set(p, rest);
    if (!strcmp(verb, "noise")) return sscanf(rest, "%lf %lf", &p->duplicate, &p->flip) == 2;
    if (!strcmp(verb, "allow")) return allow(p, rest);
    if (!strcmp(verb, "restore")) return p->is_cut = 0, 1;
    if (!strcmp(verb, "cut")) return flush(&p->up), flush(&p->down), p->is_cut = 1;
    if (!strcmp(verb, "stall") && sscanf(rest, "%lld", &ns) == 1) {
        p->stalled = now() + ns;
        hold(&p->up, p->stalled);
        hold(&p->down, p->stalled);
        return 1;
    }
    return 0;
}

static void command(const char *s)
{
    int i, used;
    char verb[16];
    if (sscanf(s, "%15s %d%n", verb, &i, &used) != 2 || i < 0 || i >= n_ports) {
        puts("error: bad command");
        return;
    }
    struct port *p = &ports[i];
    if (!strcmp(verb, "stat"))
        printf("%lu %lu %lu %lu %lu %lu %lu %lu %lu\n", p->up.frames, p->up.bytes, p->down.frames,
               p->down.bytes, p->lost, p->overflowed, p->duplicated, p->flipped, p->refused);
    else
        puts(obey(p, verb, s + used) ? "ok" : "error: bad command");
}

static void commands(void)      /* whole lines only; stdin ending ends the program */
{
    static char buf[4096];
    static int have;
    int n = read(0, buf + have, sizeof buf - 1 - have);
    if (n <= 0) exit(0);
    buf[have += n] = 0;
    for (int i = 0; i < n_ports; i++) receive(i, QUEUED);   /* what was sent before the command came first */
    char *s = buf, *e;
    for (; (e = strchr(s, '\n')); s = e + 1) { *e = 0; command(s); }
    memmove(buf, s, have -= s - buf);
}

static int open_tap(const char *netns)
{
    char path[256];
    struct ifreq r = { .ifr_name = "eth0", .ifr_flags = IFF_TAP | IFF_NO_PI };
    snprintf(path, sizeof path, "/run/netns/%s", netns);
    int ns = open(path, O_RDONLY | O_CLOEXEC);
    if (ns < 0 || setns(ns, CLONE_NEWNET)) die(path);
    close(ns);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) die("/dev/net/tun");
    if (ioctl(fd, TUNSETIFF, &r)) die("TUNSETIFF");
    return fd;
}

/* Readable when the process ends.  A pipe alone does not tell: children that the
 * lab's process forked hold its end of the pipe open too. */
static int watch(const char *parent)
{
    int fd = syscall(SYS_pidfd_open, atoi(parent), 0);
    if (fd < 0 && errno == ESRCH) exit(0);
    return fd;                 /* -1 on an old kernel: poll passes over it */
}

/* Copies stdin to stdout up to an empty line, the end of stdin, or the end of the
 * parent, however it ended: what reads the copy then knows that the lab is over. */
static int guard(const char *parent)
{
    struct pollfd p[2] = { { .fd = 0, .events = POLLIN }, { .fd = watch(parent), .events = POLLIN } };
    char buf[4096], last = '\n';
    for (;;) {
        if (poll(p, 2, -1) < 0) continue;
        if (!p[0].revents) return 0;
        int n = read(0, buf, sizeof buf);
        if (n <= 0 || write(1, buf, n) != n) return 0;
        for (int i = 0; i < n; last = buf[i++])
            if (buf[i] == '\n' && last == '\n') return 0;
    }
}

static void start_port(int i, uint64_t seed)
{
    struct port *p = &ports[i];
    p->hears = malloc(n_ports);
    memset(p->hears, 1, n_ports);
    p->up.seed = mix(seed + mix(2 * i + 1));
    p->down.seed = mix(seed + mix(2 * i + 2));
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "guard")) return guard(argv[2]);
    if (argc < 5 || strcmp(argv[1], "switch")) { fprintf(stderr, "usage: see link.c\n"); return 2; }
    n_ports = argc - 4;
    ports = calloc(n_ports, sizeof *ports);
    struct pollfd *p = calloc(n_ports + 2, sizeof *p);
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    for (int i = 0; i < n_ports; i++) {
        start_port(i, strtoull(argv[3], NULL, 10));
        ports[i].fd = open_tap(argv[i + 4]);
        p[i] = (struct pollfd){ .fd = ports[i].fd, .events = POLLIN };
    }
    p[n_ports] = (struct pollfd){ .fd = 0, .events = POLLIN };
    p[n_ports + 1] = (struct pollfd){ .fd = watch(argv[2]), .events = POLLIN };
    if (home < 0 || setns(home, CLONE_NEWNET)) die("setns");

    /* Wake on time even when the emulated hosts use all the processors, and before
     * those that measure (measure.py), which have priority 1. */
    struct sched_param prio = { .sched_priority = 2 };
    if (sched_setscheduler(0, SCHED_FIFO, &prio)) setpriority(PRIO_PROCESS, 0, -20);
    prctl(PR_SET_TIMERSLACK, 1L);
    mlockall(MCL_CURRENT | MCL_FUTURE);

    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    for (int64_t last = 0;;) {
        int64_t next = advance(now()), wait = next == NEVER ? 0 : next - now();
        if (wait < 0) wait = 0;
        struct timespec ts = { wait / 1000000000, wait % 1000000000 };
        int ready = ppoll(p, n_ports + 2, next == NEVER ? NULL : &ts, NULL);
        struct timespec rest = { 0, last + PASS - now() };
        if (rest.tv_nsec > 0) nanosleep(&rest, NULL);
        last = now();
        if (ready <= 0) continue;
        if (p[n_ports + 1].revents) return 0;
        if (p[n_ports].revents) commands();
        for (int i = 0; i < n_ports; i++) {
            if (p[i].revents & POLLIN) receive(i, BATCH);
            else if (p[i].revents) p[i].fd = -1;    /* the device is gone */
        }
    }
}
