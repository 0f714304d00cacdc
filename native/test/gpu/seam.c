/* One call through the seam. On a GPU, what computes the operands may still run when the handler is called, and is only
 * sure to have ended where the stream has come so far. So the operands arrive on the stream, as late as everything
 * else: who reads them without waiting for the stream sees rubbish.
 *
 * When the handler has returned, what it left on the stream is run, as the GPU would do before whatever comes next.
 * Anything that the fakes complained about makes the call fail, even if the handler did not notice.
 */
#include "test/gpu/seam.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/gpu/fake_access.h"
#include "test/gpu/fake_calls.h"
#include "test/gpu/fake_context.h"
#include "test/gpu/fake_driver.h"
#include "test/gpu/fake_memory.h"
#include "test/gpu/fake_nccl.h"
#include "test/gpu/fake_stream.h"

typedef struct moved {
    ffi_buffer buffer; /* as the device handler sees it */
    const void *host;  /* where XLA has it; NULL if it is not moved */
    size_t bytes;
    int is_first;  /* of those that have this host memory: it has the device memory */
    int is_result; /* it, or one with the same memory */
    size_t room;   /* the most bytes of those with the same memory */
} moved;

/* XLA's table may be longer than what is declared of it. */
typedef union api_copy {
    ffi_api api;
    char bytes[2048];
} api_copy;

static atomic_llong calls;
static pthread_key_t stream_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local const void *context_now; /* XLA's context of the call that this thread makes */

static void stream_drop(void *stream) {
    fake_stream_give(stream);
}

static void start(void) {
    pthread_key_create(&stream_key, stream_drop);
}

/* The stream of this thread. */
static fake_stream *stream_mine(void) {
    pthread_once(&once, start);
    fake_stream *stream = pthread_getspecific(stream_key);
    if (!stream) {
        stream = fake_stream_take((int)fake_setting("MPIXLA_FAKE_DEVICE_ORDINAL", 0));
        pthread_setspecific(stream_key, stream);
    }
    return stream;
}

static ffi_error *fail(const ffi_call_frame *call, const char *message) {
    ffi_error_create_args args = {.struct_size = sizeof args, .message = message, .code = FFI_INTERNAL};
    return call->api->error_create(&args);
}

static ffi_error *stream_get(ffi_stream_get_args *args) {
    args->stream = NULL;
    if (context_now && args->context == context_now)
        args->stream = stream_mine();
    else
        fake_complain("the stream was asked for with another context than that of the call, or outside of the call");
    return NULL;
}

/* 0 for types that have no size. */
static size_t itemsize(int dtype) {
    switch (dtype) {
#define MPIXLA_DTYPE(type, name, bytes, mpi_name, kind, nccl) \
    case type:                                                \
        return bytes;
#include "tables/dtypes.def"
#undef MPIXLA_DTYPE
        default:
            return 0;
    }
}

static size_t bytes_of(const ffi_buffer *b) {
    size_t bytes = itemsize(b->dtype);
    for (int64_t i = 0; i < b->rank; i++) bytes *= (size_t)b->dims[i];
    return bytes;
}

/* Reads XLA's buffers, and finds those that share memory. */
static void buffers_read(const ffi_buffers *given, int are_results, moved *all, size_t from) {
    for (int64_t i = 0; i < given->size; i++) {
        moved *m = &all[from + (size_t)i];
        m->buffer = *(const ffi_buffer *)given->buffers[i];
        m->bytes = bytes_of(&m->buffer);
        m->is_result = are_results;
        if (m->buffer.dtype == FFI_TOKEN || m->bytes == 0) continue;
        m->host = m->buffer.data;
        m->room = m->bytes;
        m->is_first = 1;
        for (moved *before = all; before < m; before++)
            if (before->host == m->host && before->is_first) {
                m->is_first = 0;
                before->is_result |= are_results;
                if (before->room < m->room) before->room = m->room;
            }
    }
}

/* Gives the buffers device memory, and lets the operands arrive. Those without bytes are NULL, as they may be on a GPU.
 */
static int buffers_move(moved *all, size_t operands, size_t count, fake_stream *stream) {
    for (size_t i = 0; i < count; i++) {
        moved *m = &all[i];
        if (m->buffer.dtype == FFI_TOKEN) continue;
        m->buffer.data = NULL;
        if (!m->host) continue;
        if (m->is_first) {
            m->buffer.data = fake_memory_alloc(m->room);
            if (!m->buffer.data) return -1;
        } else {
            const moved *first = all;
            while (first->host != m->host) first++;
            m->buffer.data = first->buffer.data;
        }
        const fake_work arrive = {
            .to = m->buffer.data, .from = m->host, .width = m->bytes, .height = 1, .is_trusted = 1};
        if (i < operands && fake_stream_add(stream, &arrive)) return -1;
    }
    return 0;
}

/* What the host handler would have done to the buffers, is done. */
static void buffers_return(moved *all, size_t operands, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const moved *m = &all[i];
        if (!m->host || !m->buffer.data) continue;
        const void *engine = fake_memory_engine(m->buffer.data);
        if (i >= operands)
            memcpy((void *)(uintptr_t)m->host, engine, m->bytes);
        else if (m->is_first && !m->is_result && memcmp(m->host, engine, m->bytes) != 0)
            fake_complain("operand %zu, which is no result, was changed", i);
    }
}

static void buffers_free(moved *all, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (all[i].is_first && all[i].buffer.data) fake_memory_free(all[i].buffer.data);
}

static int frame_fits(const ffi_call_frame *call) {
    return call->struct_size >= offsetof(ffi_call_frame, attrs) + sizeof(ffi_attributes) &&
           call->api->struct_size >= offsetof(ffi_api, stream_get) + sizeof call->api->stream_get;
}

/* With the buffers in place: the handler, and all that it left to do. */
static ffi_error *handler_run(const ffi_call_frame *call, ffi_handler *handler, moved *all, void **pointers,
                              fake_stream *stream) {
    api_copy api;
    ffi_call_frame frame;
    size_t bytes = call->struct_size < sizeof frame ? call->struct_size : sizeof frame;
    memset(&frame, 0, sizeof frame);
    memcpy(&frame, call, bytes);
    frame.struct_size = bytes;
    bytes = call->api->struct_size < sizeof api ? call->api->struct_size : sizeof api;
    memcpy(&api, call->api, bytes);
    api.api.struct_size = bytes;
    api.api.stream_get = stream_get;
    frame.api = &api.api;
    size_t count = (size_t)(call->args.size + call->rets.size);
    for (size_t i = 0; i < count; i++) pointers[i] = &all[i].buffer;
    frame.args.buffers = pointers;
    frame.rets.buffers = pointers + call->args.size;

    int depth = fake_context_depth(), current = fake_context_current();
    context_now = call->context ? call->context : call;
    if (!call->context) frame.context = (void *)(uintptr_t)context_now;
    fake_access_stream_set(stream);
    ffi_error *error = handler(&frame);
    fake_access_release();
    fake_access_stream_set(NULL);
    context_now = NULL;
    if (fake_context_depth() != depth) fake_complain("the handler pushed more contexts than it popped, or fewer");
    while (fake_context_depth() > depth) fake_context_pop(NULL);
    if (fake_context_current() != current) {
        fake_complain("the handler left device %d current, where it was %d", fake_context_current(), current);
        fake_context_set(current);
    }
    if (fake_nccl_group_drop()) fake_complain("the handler started a group of NCCL's and did not end it");

    int code = fake_stream_run(stream, fake_stream_added(stream));
    if (code != FAKE_SUCCESS) fake_complain("what the handler left on the stream failed with code %d", code);
    return error;
}

ffi_error *seam_run(ffi_call_frame *call, const char *target, ffi_handler *handler) {
    char complaint[1024], message[1280];
    if (!handler) {
        snprintf(message, sizeof message, "the seam was given no device handler for %s", target);
        return call->stage == FFI_STAGE_EXECUTE && !call->extension_start ? fail(call, message) : NULL;
    }
    if (call->extension_start || call->stage != FFI_STAGE_EXECUTE) return handler(call);
    if (!frame_fits(call)) return fail(call, "the seam does not know this version of XLA's call frames");
    fake_stream *stream = stream_mine();
    size_t operands = (size_t)call->args.size, count = operands + (size_t)call->rets.size;
    moved *all = calloc(count + 1, sizeof *all);
    void **pointers = calloc(count + 1, sizeof *pointers);
    ffi_error *error = NULL;
    atomic_fetch_add(&calls, 1);
    fake_driver_ready(); /* by XLA */
    fake_complaints_start();
    if (all && pointers && stream) {
        buffers_read(&call->args, 0, all, 0);
        buffers_read(&call->rets, 1, all, operands);
        if (buffers_move(all, operands, count, stream) == 0)
            error = handler_run(call, handler, all, pointers, stream);
        else
            fake_complain("the fake GPU is out of memory");
        buffers_return(all, operands, count);
        buffers_free(all, count);
    } else {
        fake_complain("the seam is out of memory, or there is no such fake GPU");
    }
    free(all);
    free(pointers);
    int is_wrong = fake_complaint_take(complaint, sizeof complaint);
    fake_complaints_end();
    if (!is_wrong || error) return error;
    snprintf(message, sizeof message, "%s, on the fake GPU: %s", target, complaint);
    return fail(call, message);
}

int64_t seam_calls(void) {
    return atomic_load(&calls);
}
