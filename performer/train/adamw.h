// SPDX-License-Identifier: Apache-2.0
// The arithmetic of an optimiser step over plain arrays, one pass over each. No torch here.
#ifndef PERFORMER_TRAIN_ADAMW_H_
#define PERFORMER_TRAIN_ADAMW_H_

#include <cstdint>

namespace performer {

/// Numbers of one AdamW step (Loshchilov and Hutter, arXiv 1711.05101), bias corrections included.
struct AdamWStep {
  float gradient_factor = 1;  ///< of gradients, before anything else
  float kept = 1;             ///< of parameters: 1 - lr weight_decay
  float beta1 = 0.9f, beta2 = 0.999f;
  float share1 = 0.1f, share2 = 0.001f;  ///< 1 - beta, rounded once: beta is close to 1
  float step_size = 0;                   ///< lr / (1 - beta1^t)
  float root_factor = 1;                 ///< of the root of the mean square: 1 / sqrt(1 - beta2^t)
  float eps = 1e-8f;

  /// Step t, counted from 1.
  AdamWStep(double lr, double beta1, double beta2, double eps, double weight_decay, int64_t t,
            double gradient_factor);
};

/// g = gradient_factor gradient; mean = beta1 mean + share1 g; square = beta2 square + share2 g^2;
/// parameter = kept parameter - step_size mean / (root_factor sqrt(square) + eps). Arrays of
/// `count`, apart from each other. On favor's threads.
void adamw_step(const AdamWStep& step, const float* gradient, int64_t count, float* parameter,
                float* mean, float* square);

/// Sum of squares, in double over blocks of float sums. On favor's threads, on whose number it does
/// not depend.
double sum_of_squares(const float* values, int64_t count);

}  // namespace performer

#endif  // PERFORMER_TRAIN_ADAMW_H_
