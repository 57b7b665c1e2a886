// SPDX-License-Identifier: Apache-2.0
// Where the time of a unit of work goes, by the operators that it calls.
#ifndef PERFORMER_TRAIN_STEP_PROFILE_H_
#define PERFORMER_TRAIN_STEP_PROFILE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace performer {

/// Time within operators of one kind and outside those they call, per unit of work.
struct ProfileLine {
  std::string name;
  double forward_s = 0;
  double backward_s = 0;  ///< called by autograd
  double calls = 0;

  double total_s() const { return forward_s + backward_s; }
};

struct StepProfile {
  double wall_s = 0;                   ///< per unit, recording included
  double page_faults = 0;              ///< per unit, those that need no disk
  std::vector<ProfileLine> parts;      ///< of the model and the optimiser, the longest first
  std::vector<ProfileLine> operators;  ///< the same time by operator, the longest first
};

/// Calls work() `count` times and watches the operators that its thread calls. Their times sum up
/// to the whole: what lies outside all operators is a part of its own.
StepProfile profile_steps(const std::function<void()>& work, int64_t count);

/// The part of a step that an operator of this name belongs to.
std::string part_of_operator(const std::string& name);

/// A table of parts, then of the `operators` longest operators, for people.
std::string to_text(const StepProfile& profile, int64_t operators);

}  // namespace performer

#endif  // PERFORMER_TRAIN_STEP_PROFILE_H_
