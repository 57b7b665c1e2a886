// SPDX-License-Identifier: Apache-2.0
// bfloat16 where it is safe: torch's autocast for the length of a scope.
#ifndef PERFORMER_NN_AUTOCAST_H_
#define PERFORMER_NN_AUTOCAST_H_

namespace performer {

/// While it lives, and if `wanted`, this thread's linear layers and attention take bfloat16
/// tensors. Parameters, gradients, residual stream, normalisation, and the sums and states of
/// attention stay float32. Casts of parameters are kept until the outermost scope ends, so weights
/// must not change within it; backward passes belong outside.
class Autocast {
 public:
  explicit Autocast(bool wanted);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool wanted_;
  bool was_enabled_ = false;
  int type_before_ = 0;
};

}  // namespace performer

#endif  // PERFORMER_NN_AUTOCAST_H_
