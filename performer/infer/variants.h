// SPDX-License-Identifier: Apache-2.0
// Scores of variants of one wild-type sequence: how much more or less probable a model finds them.
#ifndef PERFORMER_INFER_VARIANTS_H_
#define PERFORMER_INFER_VARIANTS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "performer/infer/mutations.h"
#include "performer/infer/score.h"

namespace performer {

/// Each score is log p(variant) - log p(wild type) by some measure; above 0: the variant is the
/// more probable one.
enum class VariantScoring {
  kMaskedMarginals,  ///< masked models: sum over the substitutions, each place masked alone in the
                     ///< wild type, of log p(variant's residue) - log p(wild type's)
  kWildTypeMarginals,  ///< the same from one pass over the wild type with nothing masked
  kRescore,            ///< whole sequences: log-likelihoods of a causal model, end token included,
                       ///< pseudo-log-likelihoods of a masked one
};
/// `masked-marginals`, `wt-marginals`, `rescore`.
std::string to_string(VariantScoring scoring);
/// Throws favor::Error, listing the known words.
VariantScoring variant_scoring_from_string(std::string_view word);

struct VariantScore {
  double value = 0;
  VariantScoring scoring = VariantScoring::kRescore;  ///< that gave it: indels are always rescored
};

/// Scores in the order of the variants; nothing for those in `failures`, which lack memory or are
/// too long for the model. `passed` hears of passes through the model. Throws favor::Error when a
/// causal model is asked for marginals, or the wild type does not fit the model.
std::vector<std::optional<VariantScore>> score_variants(
    SequenceModel& model, std::string_view wild_type, const std::vector<Variant>& variants,
    VariantScoring scoring, Direction direction, std::vector<WorkFailure>& failures,
    const std::function<void(int64_t)>& passed = {});

}  // namespace performer

#endif  // PERFORMER_INFER_VARIANTS_H_
