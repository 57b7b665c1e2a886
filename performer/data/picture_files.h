// SPDX-License-Identifier: Apache-2.0
// Folders of PNG and JPEG files as sets of pictures.
#ifndef PERFORMER_DATA_PICTURE_FILES_H_
#define PERFORMER_DATA_PICTURE_FILES_H_

#include <string>

#include "performer/data/pictures.h"
#include "performer/data/png.h"

namespace performer {

/// A file named .png, .jpg or .jpeg. Throws std::runtime_error naming it.
Picture read_picture(const std::string& path, int64_t channels);

/// The files named .png, .jpg or .jpeg of a folder and the folders in it, as pictures of `shape`.
/// Each file must be of that size and is read when it is asked for; with `tile` larger ones are cut
/// into tiles without overlap, which stay in memory, and smaller ones are left out and counted.
///
/// A folder with a folder `train` or `train_NxN` in it (N the edge) has its own sets: valid and
/// test are those of such names; where there is none for valid, it is held out of train by the
/// share options.valid_fraction. Otherwise files are divided, so that all tiles of one stand in one
/// set: the shares options.valid_fraction and options.test_fraction, at least one file unless the
/// share is 0, chosen by a hash of their names. Throws std::runtime_error naming folder or file.
PictureSplits read_picture_folder(const std::string& folder, const PictureShape& shape, bool tile,
                                  const SplitOptions& options);

}  // namespace performer

#endif  // PERFORMER_DATA_PICTURE_FILES_H_
