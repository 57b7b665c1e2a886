// SPDX-License-Identifier: Apache-2.0
// Internal: what the functions of favor_c.h share: statuses instead of exceptions, options with
// defaults, views of tensors.
#ifndef FAVOR_C_CALLS_H_
#define FAVOR_C_CALLS_H_

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>
#include <variant>
#include <vector>

#include "favor/attention.h"
#include "favor/check.h"
#include "favor/exact.h"
#include "favor/favor_c.h"
#include "favor/half.h"
#include "favor/hybrid_state.h"
#include "favor/projection.h"

struct favor_structured {
  std::vector<favor::StructuredProjection> matrices;
};

struct favor_state {
  std::variant<favor::DecodeState, favor::HybridState> value;
};

namespace favor::c {

/// Keeps the text as this thread's last error; returns the status.
favor_status fail(favor_status status, const char* text) noexcept;

/// Runs a call; no exception leaves it.
template <class Body>
favor_status guarded(const Body& body) noexcept {
  try {
    body();
    return FAVOR_OK;
  } catch (const Error& error) {
    return fail(FAVOR_INVALID_ARGUMENT, error.what());
  } catch (const std::bad_alloc&) {
    return fail(FAVOR_OUT_OF_MEMORY, "out of memory");
  } catch (const std::length_error&) {
    return fail(FAVOR_OUT_OF_MEMORY, "out of memory");
  } catch (const std::runtime_error& error) {
    return fail(FAVOR_IO_ERROR, error.what());
  } catch (const std::exception& error) {
    return fail(FAVOR_INTERNAL_ERROR, error.what());
  } catch (...) {
    return fail(FAVOR_INTERNAL_ERROR, "unknown exception");
  }
}

template <class T>
T& required(const char* op, const char* name, T* pointer) {
  FAVOR_CHECK(pointer != nullptr, op, ": ", name, " is a null pointer");
  return *pointer;
}

void set_defaults(favor_options& options);
void set_defaults(favor_exact_options& options);
void set_defaults(favor_projection_spec& spec);

/// The caller's struct, with defaults for fields that its version of the header lacks.
template <class Struct>
Struct resolve(const char* op, const char* name, const Struct* given) {
  const size_t size = required(op, name, given).size;
  FAVOR_CHECK(size >= sizeof(size_t) && size <= sizeof(Struct), op, ": ", name, " has size ", size,
              ", expected at most ", sizeof(Struct),
              " (set by its init function; a newer header needs a newer library)");
  Struct all;
  set_defaults(all);
  std::memcpy(static_cast<void*>(&all), given, size);
  return all;
}

/// Throws unless the state is one without a window.
const DecodeState& plain(const char* op, const char* name, const favor_state& state);
inline DecodeState& plain(const char* op, const char* name, favor_state& state) {
  return const_cast<DecodeState&>(plain(op, name, std::as_const(state)));
}

AttentionParams<float> params_of(const char* op, const favor_options* given);
ProjectionSpec spec_of(const char* op, const favor_projection_spec* given);
ExactParams<float> params_of(const char* op, const favor_exact_options* given);

template <class T>
inline constexpr favor_dtype kDtype = FAVOR_FLOAT32;
template <>
inline constexpr favor_dtype kDtype<bfloat16> = FAVOR_BFLOAT16;
template <>
inline constexpr favor_dtype kDtype<float16> = FAVOR_FLOAT16;

/// Views of the tensors of one call, which all have elements of type T.
template <class T>
class Views {
 public:
  explicit Views(const char* op) : op_(op) {}

  View4<T> operator()(const char* name, const favor_tensor& tensor) const {
    FAVOR_CHECK(tensor.dtype == kDtype<T>, op_, ": ", name, " has dtype ", tensor.dtype,
                ", expected ", static_cast<int>(kDtype<T>),
                kDtype<T> == FAVOR_FLOAT32 ? " (FAVOR_FLOAT32)" : " (as q)");
    View4<T> view;
    view.data = static_cast<T*>(tensor.data);
    std::copy_n(tensor.sizes, 4, view.sizes.begin());
    std::copy_n(tensor.strides, 4, view.strides.begin());
    return view;
  }

 private:
  const char* op_;
};

/// Calls body(T()) for the element type of q.
template <class Body>
void with_dtype(const char* op, const favor_tensor& q, const Body& body) {
  if (q.dtype == FAVOR_FLOAT32) return body(float());
  if (q.dtype == FAVOR_BFLOAT16) return body(bfloat16());
  if (q.dtype == FAVOR_FLOAT16) return body(float16());
  throw Error(message(op, ": q has dtype ", q.dtype, ", expected 0, 1 or 2 (a favor_dtype)"));
}

}  // namespace favor::c

#endif  // FAVOR_C_CALLS_H_
