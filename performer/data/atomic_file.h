// SPDX-License-Identifier: Apache-2.0
// Files that appear whole or not at all, under the toolkit's name.
#ifndef PERFORMER_DATA_ATOMIC_FILE_H_
#define PERFORMER_DATA_ATOMIC_FILE_H_

#include "favor/atomic_file.h"

namespace performer {

using favor::AtomicFile;
using favor::sync_folder;
using favor::write_file_atomically;

}  // namespace performer

#endif  // PERFORMER_DATA_ATOMIC_FILE_H_
