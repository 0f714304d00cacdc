/* The functions of dpctl's C interface to SYCL, as its library has them. A queue is the handle of a stream. */
#ifndef MPIXLA_TEST_FAKE_SYCL_H
#define MPIXLA_TEST_FAKE_SYCL_H

#include "device/sycl.h"
#include "test/gpu/gpu_types.h"

#define MPIXLA_SYCL(name, sycl, result, prototype) FAKE_API result sycl prototype;
#include "tables/sycl_functions.def"
#undef MPIXLA_SYCL

#endif
