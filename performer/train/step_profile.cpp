// SPDX-License-Identifier: Apache-2.0
#include "performer/train/step_profile.h"

#include <ATen/record_function.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <string_view>

namespace performer {
namespace {

using Clock = std::chrono::steady_clock;

struct Sums {
  double forward_s = 0, backward_s = 0;
  int64_t calls = 0;
};

struct Call;

// Of the thread that is watched. Operators of its helpers run within one of its own.
struct Watch {
  std::map<std::string, Sums> sums;
  Call* open = nullptr;  // the innermost
  double outermost_s = 0;
};

thread_local Watch* watch = nullptr;

// An operator that has begun.
struct Call : at::ObserverContext {
  Clock::time_point begin;
  double inner_s = 0;
  bool backward = false;
  Call* outer = nullptr;
};

std::unique_ptr<at::ObserverContext> begin_call(const at::RecordFunction& function) {
  if (watch == nullptr) return nullptr;
  auto call = std::make_unique<Call>();
  call->outer = watch->open;
  call->backward = function.scope() == at::RecordScope::BACKWARD_FUNCTION ||
                   (call->outer != nullptr && call->outer->backward);
  watch->open = call.get();
  call->begin = Clock::now();
  return call;
}

void end_call(const at::RecordFunction& function, at::ObserverContext* context) {
  if (watch == nullptr || context == nullptr) return;
  auto* call = static_cast<Call*>(context);
  const double spent = std::chrono::duration<double>(Clock::now() - call->begin).count();
  Sums& sums = watch->sums[function.name()];
  (call->backward ? sums.backward_s : sums.forward_s) += spent - call->inner_s;
  ++sums.calls;
  (call->outer != nullptr ? call->outer->inner_s : watch->outermost_s) += spent;
  watch->open = call->outer;
}

int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

void sort_longest_first(std::vector<ProfileLine>& lines) {
  std::stable_sort(lines.begin(), lines.end(), [](const ProfileLine& a, const ProfileLine& b) {
    return a.total_s() > b.total_s();
  });
}

// The first whose words are found in an operator's name.
struct Kind {
  const char* part;
  std::vector<const char*> words;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> list = {
      {"matrix products", {"::Linear>"}},
      {"attention", {"performer::", "CppNode", "scaled_dot_product"}},
      {"layer norm", {"layer_norm", "LayerNorm"}},
      {"GELU", {"gelu", "Gelu"}},
      {"dropout", {"dropout", "Dropout", "bernoulli"}},
      {"loss", {"softmax", "Softmax", "nll_loss", "NllLoss", "cross_entropy"}},
      {"matrix products", {"mm", "Mm", "matmul", "linear", "mkldnn"}},
      {"optimiser", {"optimizer", "Optimizer"}},
      {"embedding", {"embedding", "Embedding"}},
      {"copies and sums",
       {"copy", "cat", "stack", "clone", "contiguous", "add", "sum", "to", "zero", "fill", "mul",
        "div", "Accumulate"}},
  };
  return list;
}

}  // namespace

std::string part_of_operator(const std::string& name) {
  for (const Kind& kind : kinds()) {
    for (const std::string_view word : kind.words) {
      if (name.find(word) != std::string::npos) return kind.part;
    }
  }
  return "other operators";
}

StepProfile profile_steps(const std::function<void()>& work, int64_t count) {
  Watch own;
  watch = &own;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(begin_call, end_call)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                   at::RecordScope::USER_SCOPE}));
  struct Stop {
    at::CallbackHandle handle;
    ~Stop() {
      at::removeCallback(handle);
      watch = nullptr;
    }
  } stop{handle};
  const int64_t faults_before = page_faults();
  const auto start = Clock::now();
  for (int64_t i = 0; i < count; ++i) work();
  const double wall_s = std::chrono::duration<double>(Clock::now() - start).count();
  const double units = static_cast<double>(count);
  StepProfile profile;
  profile.wall_s = wall_s / units;
  profile.page_faults = static_cast<double>(page_faults() - faults_before) / units;
  std::map<std::string, ProfileLine> parts;
  for (const auto& [name, sums] : own.sums) {
    const ProfileLine line = {name, sums.forward_s / units, sums.backward_s / units,
                              static_cast<double>(sums.calls) / units};
    profile.operators.push_back(line);
    ProfileLine& part = parts[part_of_operator(name)];
    part.forward_s += line.forward_s;
    part.backward_s += line.backward_s;
    part.calls += line.calls;
  }
  for (const auto& [name, part] : parts) {
    profile.parts.push_back({name, part.forward_s, part.backward_s, part.calls});
  }
  const double outside_s = std::max(0.0, wall_s - own.outermost_s) / units;
  profile.parts.push_back({"outside operators", outside_s, 0, 0});
  sort_longest_first(profile.parts);
  sort_longest_first(profile.operators);
  return profile;
}

std::string to_text(const StepProfile& profile, int64_t operators) {
  std::string text;
  const auto add_line = [&](const ProfileLine& line) {
    char buffer[256];
    std::snprintf(buffer, sizeof buffer, "%-44.44s %10.2f %10.2f %7.1f %% %9.1f\n",
                  line.name.c_str(), 1e3 * line.forward_s, 1e3 * line.backward_s,
                  100 * line.total_s() / profile.wall_s, line.calls);
    text += buffer;
  };
  char heading[256];
  std::snprintf(heading, sizeof heading,
                "%.2f ms and %.0f page faults per unit of work\n\n%-44s %10s %10s %9s %9s\n",
                1e3 * profile.wall_s, profile.page_faults, "part", "forward ms", "backward",
                "share", "calls");
  text += heading;
  for (const ProfileLine& part : profile.parts) add_line(part);
  text += "\noperator\n";
  const int64_t shown = std::min<int64_t>(operators, std::ssize(profile.operators));
  for (int64_t i = 0; i < shown; ++i) add_line(profile.operators[i]);
  return text;
}

}  // namespace performer
