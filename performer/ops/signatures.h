// SPDX-License-Identifier: Apache-2.0
// Operators from functions that take their arguments as one struct, in last place: the dispatcher's
// signature, with the members one by one, follows from fields(). Internal to this folder.
#ifndef PERFORMER_OPS_SIGNATURES_H_
#define PERFORMER_OPS_SIGNATURES_H_

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "performer/ops/arguments.h"

namespace performer::ops {

/// How the dispatcher passes a member of type T.
template <class T>
struct Passed {
  using type = T;
};
template <>
struct Passed<std::string> {
  using type = std::string_view;
};
template <>
struct Passed<std::optional<at::Tensor>> {
  using type = const std::optional<at::Tensor>&;
};

template <class... T>
struct Types {};

/// Result(Before..., const Arguments&), with the members of Arguments known.
template <class Result, class Before, class Arguments, class Fields>
struct Unpacked;
template <class Result, class... Before, class Arguments, class... Fields>
struct Unpacked<Result, Types<Before...>, Arguments, std::tuple<Fields&...>> {
  using Signature = Result(Before..., typename Passed<Fields>::type...);

  template <auto kFunction>
  static Result kernel(Before... before, typename Passed<Fields>::type... values) {
    Arguments arguments;
    Arguments::fields(arguments) = std::tie(values...);
    return kFunction(before..., arguments);
  }

  static Result call(const c10::TypedOperatorHandle<Signature>& op, Before... before,
                     const Arguments& arguments) {
    return std::apply([&](const auto&... values) { return op.call(before..., values...); },
                      Arguments::fields(arguments));
  }
};

/// Takes the last of a function's parameters for its arguments.
template <class Result, class Before, class Rest>
struct Split;
template <class Result, class Before, class Last>
struct Split<Result, Before, Types<Last>> {
  using Arguments = std::remove_cvref_t<Last>;
  using type =
      Unpacked<Result, Before, Arguments, decltype(Arguments::fields(std::declval<Arguments&>()))>;
};
template <class Result, class... Before, class First, class Second, class... Rest>
struct Split<Result, Types<Before...>, Types<First, Second, Rest...>>
    : Split<Result, Types<Before..., First>, Types<Second, Rest...>> {};

template <class Packed>
struct UnpackedOf;
template <class Result, class... Parameters>
struct UnpackedOf<Result(Parameters...)> : Split<Result, Types<>, Types<Parameters...>>::type {};

/// The dispatcher's kernel that packs the members and hands them to kFunction.
template <auto kFunction>
inline constexpr auto kernel_of =
    &UnpackedOf<std::remove_pointer_t<decltype(kFunction)>>::template kernel<kFunction>;

/// A registered operator, called with its arguments in one struct: Packed is a function type.
template <class Packed>
class Operator {
 public:
  explicit Operator(const char* name)
      : handle_(c10::Dispatcher::singleton()
                    .findSchemaOrThrow(name, "")
                    .typed<typename UnpackedOf<Packed>::Signature>()) {}

  template <class... Given>
  auto operator()(Given&&... given) const {
    return UnpackedOf<Packed>::call(handle_, std::forward<Given>(given)...);
  }

 private:
  c10::TypedOperatorHandle<typename UnpackedOf<Packed>::Signature> handle_;
};

}  // namespace performer::ops

#endif  // PERFORMER_OPS_SIGNATURES_H_
