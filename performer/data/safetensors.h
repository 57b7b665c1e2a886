// SPDX-License-Identifier: Apache-2.0
// The safetensors format, under the toolkit's name.
#ifndef PERFORMER_DATA_SAFETENSORS_H_
#define PERFORMER_DATA_SAFETENSORS_H_

#include "favor/safetensors.h"

namespace performer {

using favor::bytes_per_element;
using favor::SafetensorsFile;
using favor::stored_type_from_string;
using favor::StoredTensor;
using favor::StoredType;
using favor::write_safetensors;

}  // namespace performer

#endif  // PERFORMER_DATA_SAFETENSORS_H_
