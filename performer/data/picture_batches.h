// SPDX-License-Identifier: Apache-2.0
// Downsampled ImageNet in batches (Chrabaszcz et al. 2017): pickles or .npz files of planar
// pictures with labels.
#ifndef PERFORMER_DATA_PICTURE_BATCHES_H_
#define PERFORMER_DATA_PICTURE_BATCHES_H_

#include <string>

#include "performer/data/pictures.h"

namespace performer {

/// Whether a folder holds train_data_batch_1, with .npz behind or not.
bool has_picture_batches(const std::string& folder);

/// <folder>/train_data_batch_1, 2, ... as far as there are such files, and val_data, the test set,
/// each with .npz behind or not. A batch has `data`, uint8 [N, 3 edge edge] with all red, then all
/// green, then all blue values of a picture, which are given out pixel by pixel, and `labels` from
/// 1 on, which become classes from 0 on. Of the training pictures the share options.valid_fraction
/// is held out by a hash of their numbers. The pictures stay in their files, but for those of
/// compressed .npz files and of pickles that have them as text, which are held in memory. Throws
/// std::runtime_error naming file and place.
PictureSplits read_picture_batches(const std::string& folder, const SplitOptions& options);

}  // namespace performer

#endif  // PERFORMER_DATA_PICTURE_BATCHES_H_
