// SPDX-License-Identifier: Apache-2.0
#include "performer/nn/autocast.h"

#include <ATen/autocast_mode.h>

namespace performer {

Autocast::Autocast(bool wanted) : wanted_(wanted) {
  if (!wanted_) return;
  was_enabled_ = at::autocast::is_autocast_enabled(at::kCPU);
  type_before_ = static_cast<int>(at::autocast::get_autocast_dtype(at::kCPU));
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!wanted_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, was_enabled_);
  at::autocast::set_autocast_dtype(at::kCPU, static_cast<at::ScalarType>(type_before_));
}

}  // namespace performer
