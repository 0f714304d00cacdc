/* The file is JSON at each moment: it is read after each step. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "check.h"
#include "json.h"
#include "watch/timeline.h"

enum { MANY = 3000, THREADS = 4, KILLS = 25, LIMIT = 1 << 20 };

static const char first[] = "{\"ph\":\"M\",\"name\":\"first\"}";
static const char event[] =
    ",\n{\"ph\":\"X\",\"name\":\"an event of about the length that events have, so that the file grows\",\"ts\":1.5}";

static char path[256], hidden[300];
static timeline file;

static int open_with(size_t limit) {
    return timeline_open(&file, path, limit, 3, first, sizeof first - 1);
}

static int add(void) {
    return timeline_add(&file, event, sizeof event - 1) != NULL;
}

static int lines_in(const char *text) {
    int lines = 0;
    for (; *text; text++) lines += *text == '\n';
    return lines;
}

static void is_whole_at_each_moment(void) {
    CHECK_INT(open_with(LIMIT), 0);
    CHECK_INT(json_count(json_file(hidden)), 1);
    CHECK_STR(json_file(hidden) + TIMELINE_CHUNK - 4, " \n]\n");
    CHECK_STR(json_file(path), "");
    CHECK(add());
    CHECK_INT(json_count(json_file(hidden)), 2);
    timeline_show(&file);
    int whole = 1, steps = 0;
    size_t length = file.length;
    for (int i = 2; i < MANY; i++) {
        CHECK(add());
        int grew = file.length != length;
        steps += grew;
        length = file.length;
        if (i % 100 < 2 || grew) whole &= json_count(json_file(path)) == i + 1;
    }
    CHECK(whole);
    CHECK(steps >= 1);
    CHECK_INT(timeline_close(&file), 0);
    CHECK_INT(json_count(json_file(path)), MANY);
    CHECK_INT(lines_in(json_file(path)), MANY + 2);
    CHECK_STR(json_file(hidden), "");
    CHECK(!add());
    CHECK_INT(timeline_close(&file), 0);
    CHECK_INT(json_count(json_file(path)), MANY);
}

static void leaves_nothing_if_it_has_nothing_to_tell(void) {
    const char *before = "what was there";
    FILE *old = fopen(path, "w");
    CHECK(old && fputs(before, old) >= 0 && fclose(old) == 0);
    CHECK_INT(open_with(LIMIT), 0);
    CHECK(add()); /* what it says of itself */
    CHECK_STR(json_file(path), before);
    CHECK_INT(timeline_close(&file), 0);
    CHECK_STR(json_file(path), before);
    CHECK_STR(json_file(hidden), "");
}

static void stops_at_its_limit(void) {
    CHECK_INT(open_with(2 * TIMELINE_CHUNK), 0);
    timeline_show(&file);
    int added = 0;
    while (added < 1000000 && add()) added++;
    CHECK(added > 1000 && added < 1000000);
    CHECK_INT(json_count(json_file(path)), added + 2);
    CHECK_IN(json_file(path),
             "\"name\":\"mpixla_stopped\",\"pid\":3,\"args\":{\"why\":\"the file has reached its limit of 0 MiB");
    CHECK(!add());
    CHECK(strlen(json_file(path)) <= 2 * TIMELINE_CHUNK);
    CHECK_INT(timeline_close(&file), -1);
    CHECK_IN(error_get(), "is not complete: the file has reached its limit");
    CHECK_INT(json_count(json_file(path)), added + 2);
}

/* To the process, a file that may not grow is like a full disk: an error of write, part of which may have been done. */
static void survives_a_full_disk(void) {
    struct rlimit before, small = {.rlim_cur = TIMELINE_CHUNK + 10000};
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    small.rlim_max = before.rlim_max;
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &small), 0);
    CHECK_INT(open_with(LIMIT), 0);
    timeline_show(&file);
    int added = 0;
    while (added < 1000000 && add()) added++;
    CHECK(added > 1000 && added < 1000000);
    CHECK(strlen(json_file(path)) > TIMELINE_CHUNK);
    CHECK_INT(json_count(json_file(path)), added + 2);
    CHECK_IN(json_file(path), "the file cannot be made longer: File too large");
    CHECK_INT(timeline_close(&file), -1);
    CHECK_INT(json_count(json_file(path)), added + 2);
    small.rlim_cur = 1000;
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &small), 0);
    CHECK_INT(open_with(LIMIT), -1);
    CHECK_IN(error_get(), "cannot be written: File too large");
    CHECK_STR(json_file(hidden), "");
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &before), 0);
}

static void says_what_is_wrong(void) {
    char kept[sizeof path], longer[TIMELINE_PATH_BYTES + 1];
    memcpy(kept, path, sizeof path);
    snprintf(path, sizeof path, "/nowhere/at/all.json");
    CHECK_INT(open_with(LIMIT), -1);
    CHECK_STR(error_get(), "the trace /nowhere/at/all.json cannot be made: No such file or directory");
    memcpy(path, kept, sizeof path);
    CHECK_INT(open_with(1000), -1);
    CHECK_IN(error_get(), "a trace takes at least 128 KiB");
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    CHECK_INT(timeline_open(&file, longer, LIMIT, 0, first, sizeof first - 1), -1);
    CHECK_IN(error_get(), "too long");
}

static atomic_int added_by_all;

static void *add_many(void *unused) {
    for (int i = 0; i < MANY; i++) atomic_fetch_add(&added_by_all, add());
    return unused;
}

static void keeps_events_of_threads_apart(size_t limit) {
    pthread_t threads[THREADS];
    atomic_store(&added_by_all, 0);
    CHECK_INT(open_with(limit), 0);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, add_many, NULL);
    timeline_show(&file);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    int stopped = *file.why != '\0', added = atomic_load(&added_by_all);
    CHECK_INT(stopped, limit < 2 * LIMIT);
    CHECK_INT(added == THREADS * MANY, !stopped);
    CHECK_INT(json_count(json_file(path)), 1 + added + stopped);
    CHECK_INT(timeline_close(&file), stopped ? -1 : 0);
    CHECK_INT(json_count(json_file(path)), 1 + added + stopped);
}

/* Only the event that was being copied may be torn. */
static void is_whole_when_the_process_is_killed(void) {
    const struct timespec pause = {.tv_nsec = 300000};
    int whole = 0;
    for (int i = 0; i < KILLS; i++) {
        unlink(path);
        pid_t child = fork();
        if (child == 0) {
            if (open_with(64 << 20)) _exit(1);
            timeline_show(&file);
            for (;;) add();
        }
        while (access(path, F_OK) != 0) nanosleep(&pause, NULL);
        for (int j = 0; j < 1 + i % 7; j++) nanosleep(&pause, NULL);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        const char *text = json_file(path);
        whole += json_count(text) > 0;
        size_t length = strlen(text);
        CHECK(length >= TIMELINE_CHUNK);
        while (length > 0 && (text[length - 1] == ' ' || text[length - 1] == '\n')) length--;
        CHECK(length > 0 && text[length - 1] == ']');
    }
    CHECK(whole > 0); /* how many depends on what else the machine does */
    printf("%d of %d files of killed processes are whole\n", whole, KILLS);
}

int main(void) {
    char directory[] = "/tmp/mpixla-timeline-XXXXXX";
    if (!mkdtemp(directory)) return 2;
    snprintf(path, sizeof path, "%s/rank-0003.json", directory);
    snprintf(hidden, sizeof hidden, "%s.new", path);
    is_whole_at_each_moment();
    leaves_nothing_if_it_has_nothing_to_tell();
    stops_at_its_limit();
    survives_a_full_disk();
    says_what_is_wrong();
    keeps_events_of_threads_apart((size_t)64 << 20);
    keeps_events_of_threads_apart(4 * (size_t)TIMELINE_CHUNK);
    is_whole_when_the_process_is_killed();
    unlink(path);
    rmdir(directory);
    return check_failures();
}
