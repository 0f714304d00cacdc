/* The file is whole at each moment: it is read after each step. */
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "check.h"
#include "records.h"
#include "run.h"

enum {
    MANY = 3000,
    NUMBERS = 1 << 15,
    THREADS = 4,
    KILLS = 25,
    LIMIT = 1 << 20,
    FIRST = TIMELINE_CHUNK / TIMELINE_RECORD_BYTES
};

static size_t place_of(int record) {
    return TIMELINE_HEADER_BYTES + (size_t)record * TIMELINE_RECORD_BYTES;
}

static const timeline_header header = {.magic = "mpixla",
                                       .version = TIMELINE_VERSION,
                                       .record_bytes = TIMELINE_RECORD_BYTES,
                                       .rank = 3,
                                       .ranks = 4,
                                       .job = "one"};

static char path[256], hidden[300];
static timeline *file;
static atomic_llong next;

static timeline *open_with(size_t limit) {
    atomic_store(&next, 0);
    file = timeline_open(path, limit, &header);
    return file;
}

/* All numbers of the record are the same. */
static int add(void) {
    timeline_record *r = timeline_add(file);
    long long n = atomic_fetch_add(&next, 1);
    if (!r) return 0;
    r->number = (uint32_t)n;
    r->of.clock = (timeline_clock){n, n, n};
    timeline_publish(r, TIMELINE_CLOCK);
    return 1;
}

/* How many whole records the file has; -1: it is no timeline, or has a record that is not whole. */
static int whole_in(const char *name) {
    records r = records_read(name);
    if (!r.header || strcmp(r.header->magic, "mpixla") != 0 || r.header->rank != 3) return -1;
    for (size_t i = 0; i < r.number; i++) {
        const timeline_record *a = &r.all[i];
        if (a->kind == TIMELINE_NOTHING) continue;
        if (a->kind != TIMELINE_CLOCK || a->of.clock.when != a->number || a->of.clock.ahead != a->number) return -1;
        if (a->of.clock.round_trip != a->number) return -1;
    }
    return records_count(&r, TIMELINE_CLOCK);
}

static size_t bytes_of(const char *name) {
    struct stat facts;
    return stat(name, &facts) == 0 ? (size_t)facts.st_size : 0;
}

static void is_whole_at_each_moment(void) {
    CHECK(open_with(LIMIT) != NULL);
    CHECK_INT(whole_in(hidden), 0);
    CHECK_INT(bytes_of(hidden), TIMELINE_HEADER_BYTES);
    CHECK_INT(whole_in(path), -1);
    timeline_record *taken = timeline_add(file); /* and never published */
    CHECK(taken && taken->kind == TIMELINE_NOTHING);
    CHECK(add());
    CHECK_INT(whole_in(hidden), 1);
    timeline_file_rename(file);
    int whole = 1;
    for (int i = 2; i <= MANY; i++) {
        CHECK(add());
        if (i % 50 < 2) whole &= whole_in(path) == i;
    }
    CHECK(whole);
    taken->of.clock = (timeline_clock){7, 7, 7}; /* by a call that has lasted */
    taken->number = 7;
    timeline_publish(taken, TIMELINE_CLOCK);
    CHECK_INT(whole_in(path), MANY + 1);
    CHECK_INT(timeline_close(file), 0);
    CHECK_INT(whole_in(path), MANY + 1);
    CHECK_INT(bytes_of(path), place_of(MANY + 1));
    CHECK_STR(records_read(path).header->stopped, "");
    CHECK(!records_read(hidden).header);
    CHECK(!add());
    CHECK_INT(timeline_close(file), 0);
}

/* Without being asked to. */
static void writes_by_itself(void) {
    CHECK(open_with(LIMIT) != NULL);
    timeline_file_rename(file);
    for (int i = 1; i < 5; i++) {
        CHECK(add());
        while (bytes_of(path) < place_of(i)) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    CHECK_INT(timeline_close(file), 0);
}

/* More records than fit into memory that is kept. Calls that last, among others that are over, are there when they end.
 */
static void writes_again_what_changes(void) {
    timeline_record *lasting[10];
    CHECK(open_with((size_t)64 << 20) != NULL);
    timeline_file_rename(file);
    for (int i = 0; i < 10; i++) {
        lasting[i] = timeline_add(file);
        if (!lasting[i]) return;
        timeline_publish(lasting[i], TIMELINE_CALL);
        for (int j = 0; j < MANY; j++) CHECK(add());
        CHECK_INT(whole_in(path), -1); /* a call, which is no record of this test */
    }
    for (int i = 0; i < 10; i++) {
        lasting[i]->of.call.took = i + 1;
        atomic_store(&lasting[i]->of.call.state, TIMELINE_OVER);
        records r = records_read(path);
        CHECK_INT(records_count(&r, TIMELINE_CALL), 10);
        CHECK_INT(records_count(&r, TIMELINE_CLOCK), 10 * MANY);
        const timeline_record *found = &r.all[i * (MANY + 1)];
        CHECK_INT(found->of.call.state, TIMELINE_OVER);
        CHECK_INT(found->of.call.took, i + 1);
    }
    CHECK_INT(timeline_close(file), 0);
}

/* By somebody else: a store into mapped memory would be a signal then. */
static void survives_a_file_that_is_made_shorter(void) {
    CHECK(open_with((size_t)64 << 20) != NULL);
    timeline_file_rename(file);
    for (int i = 0; i < MANY; i++) CHECK(add());
    CHECK_INT(whole_in(path), MANY);
    CHECK_INT(truncate(path, 0), 0);
    for (int i = 0; i < MANY && add(); i++) {
    }
    records r = records_read(path);
    CHECK_STR(r.header->stopped, "it has been made shorter by another process");
    CHECK(!add());
    CHECK_INT(timeline_close(file), -1);
    CHECK_IN(error_get(), "is not complete: it has been made shorter by another process");
}

static void leaves_nothing_if_it_has_nothing_to_tell(void) {
    FILE *old = fopen(path, "w");
    CHECK(old && fputs("what was there", old) >= 0 && fclose(old) == 0);
    CHECK(open_with(LIMIT) != NULL);
    CHECK(add()); /* what it says of itself */
    CHECK_INT(timeline_close(file), 0);
    CHECK_STR((const char *)records_read(path).header, "what was there");
    CHECK(!records_read(hidden).header);
    timeline_file_rename(file); /* too late */
    CHECK_STR((const char *)records_read(path).header, "what was there");
}

/* Two of one rank, both before their first call: what either does to its file is nothing to the other. */
static void keeps_jobs_apart(void) {
    timeline_header another = header;
    memcpy(another.job, "two", sizeof "two");
    CHECK(open_with(LIMIT) != NULL);
    timeline *other = timeline_open(path, LIMIT, &another);
    CHECK(other != NULL);
    CHECK(add());
    CHECK_INT(timeline_close(other), 0);
    CHECK_INT(whole_in(hidden), 1);
    timeline_file_rename(file);
    CHECK_INT(whole_in(path), 1);
    CHECK_INT(timeline_close(file), 0);
}

static void stops_at_its_limit(void) {
    static const char why[] = "the file has reached its limit of 0 MiB (MPIXLA_TRACE_LIMIT)";
    CHECK(open_with((size_t)2 * TIMELINE_CHUNK) != NULL);
    timeline_file_rename(file);
    int added = 0;
    while (added < 1000000 && add()) added++;
    CHECK_INT(added, 2 * FIRST - TIMELINE_HEADER_BYTES / TIMELINE_RECORD_BYTES);
    CHECK_INT(whole_in(path), added);
    CHECK_STR(records_read(path).header->stopped, why);
    CHECK(!add());
    CHECK_INT(timeline_close(file), -1);
    CHECK_IN(error_get(), "is not complete: the file has reached its limit");
    CHECK_INT(whole_in(path), added);
    CHECK_INT(bytes_of(path), place_of(added));
}

/* To the process, a file that may not grow is like a full disk: an error of write, part of which may have been done. */
static void survives_a_full_disk(void) {
    struct rlimit before, small = {.rlim_cur = TIMELINE_CHUNK + 10000};
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    small.rlim_max = before.rlim_max;
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &small), 0);
    CHECK(open_with(LIMIT) != NULL);
    timeline_file_rename(file);
    while (add()) timelines_flush();
    CHECK_INT(bytes_of(path), TIMELINE_CHUNK + 10000);
    int whole = whole_in(path);
    CHECK_INT(whole, (TIMELINE_CHUNK + 10000 - TIMELINE_HEADER_BYTES) / TIMELINE_RECORD_BYTES);
    CHECK_STR(records_read(path).header->stopped, "the file cannot be written: File too large");
    CHECK_INT(timeline_close(file), -1);
    CHECK_INT(whole_in(path), whole);
    small.rlim_cur = 1000;
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &small), 0);
    CHECK(!open_with(LIMIT));
    CHECK_IN(error_get(), "cannot be written: File too large");
    CHECK(!records_read(hidden).header);
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &before), 0);
}

static void says_what_is_wrong(void) {
    char kept[sizeof path], longer[4097];
    memcpy(kept, path, sizeof path);
    snprintf(path, sizeof path, "/nowhere/at/all.trace");
    CHECK(!open_with(LIMIT));
    CHECK_STR(error_get(), "the trace /nowhere/at/all.trace cannot be made: No such file or directory");
    memcpy(path, kept, sizeof path);
    CHECK(!open_with(1000));
    CHECK_IN(error_get(), "a trace takes at least 64 KiB");
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    CHECK(!timeline_open(longer, LIMIT, &header));
    CHECK_IN(error_get(), "too long");
}

static atomic_int added_by_all;

static void *add_many(void *unused) {
    for (int i = 0; i < MANY; i++) atomic_fetch_add(&added_by_all, add());
    return unused;
}

static void keeps_records_of_threads_apart(size_t limit) {
    atomic_store(&added_by_all, 0);
    CHECK(open_with(limit) != NULL);
    const run_threads threads = threads_start(THREADS, add_many);
    timeline_file_rename(file);
    threads_join(&threads);
    int stopped = *records_read(path).header->stopped != '\0', added = atomic_load(&added_by_all);
    CHECK_INT(stopped, limit < LIMIT);
    CHECK_INT(added == THREADS * MANY, !stopped);
    CHECK_INT(whole_in(path), added);
    CHECK_INT(timeline_close(file), stopped ? -1 : 0);
    CHECK_INT(whole_in(path), added);
}

static atomic_int definitions;

static void define(timeline *t, uint32_t number, const void *key) {
    atomic_fetch_add(&definitions, 1);
    timeline_add_parts(t, TIMELINE_TEXT, number, key, strlen(key));
}

static const char *text_of(int i) {
    static char texts[MANY][400];
    if (!*texts[i]) snprintf(texts[i], sizeof texts[i], "%d%*s", i, i % 300, "|");
    return texts[i];
}

static void *number_all(void *unused) {
    for (int i = 0; i < MANY; i++) CHECK(timeline_number_of(file, text_of(i), define) != 0);
    return unused;
}

static void gives_each_text_one_number(void) {
    for (int i = 0; i < MANY; i++) (void)text_of(i);
    CHECK(open_with((size_t)64 << 20) != NULL);
    timeline_file_rename(file);
    threads_run(THREADS, number_all);
    CHECK_INT(atomic_load(&definitions), MANY);
    records r = records_read(path);
    for (int i = 0; i < MANY; i += 7)
        CHECK_STR(records_text(&r, timeline_number_of(file, text_of(i), define)), text_of(i));
    /* Those that are too many have none, and the file ends before what would need them. */
    static const char others[NUMBERS + 2][2];
    for (int i = 0; i < NUMBERS - MANY; i++) CHECK(timeline_number_of(file, others[i], define) != 0);
    CHECK(timeline_add(file) != NULL);
    CHECK_INT(timeline_number_of(file, others[NUMBERS], define), 0);
    CHECK(timeline_number_of(file, text_of(5), define) != 0);
    CHECK(!timeline_add(file));
    CHECK_STR(records_read(path).header->stopped,
              "it has named as many source lines and communicators as it can (32768)");
    CHECK_INT(timeline_number_of(file, others[NUMBERS + 1], define), 0); /* says it once */
    CHECK_INT(timeline_close(file), -1);
    CHECK_IN(error_get(), "is not complete: it has named as many source lines");
}

static void is_whole_when_the_process_is_killed(void) {
    const struct timespec pause = {.tv_nsec = 300000};
    for (int i = 0; i < KILLS; i++) {
        unlink(path);
        pid_t child = fork();
        if (child == 0) {
            if (!open_with(64 << 20)) _exit(1);
            timeline_file_rename(file);
            for (;;) (void)add();
        }
        while (whole_in(path) <= 0) nanosleep(&pause, NULL);
        for (int j = 0; j < 1 + i % 7; j++) nanosleep(&pause, NULL);
        kill(child, SIGKILL);
        CHECK_INT(process_end(child), -SIGKILL);
        CHECK(whole_in(path) > 0);
    }
}

int main(void) {
    char directory[] = "/tmp/mpixla-timeline-XXXXXX";
    if (!mkdtemp(directory)) return 2;
    snprintf(path, sizeof path, "%s/rank-0003.trace", directory);
    snprintf(hidden, sizeof hidden, "%s.one.new", path);
    is_whole_at_each_moment();
    leaves_nothing_if_it_has_nothing_to_tell();
    keeps_jobs_apart();
    stops_at_its_limit();
    writes_by_itself();
    writes_again_what_changes();
    survives_a_file_that_is_made_shorter();
    survives_a_full_disk();
    says_what_is_wrong();
    keeps_records_of_threads_apart((size_t)64 << 20);
    keeps_records_of_threads_apart(4 * (size_t)TIMELINE_CHUNK);
    gives_each_text_one_number();
    is_whole_when_the_process_is_killed();
    unlink(path);
    rmdir(directory);
    return check_failures();
}
