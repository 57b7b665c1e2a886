// SPDX-License-Identifier: Apache-2.0
// Which instruction sets the kernels were compiled for, which this CPU has, and which one is used.
#ifndef FAVOR_ISA_H_
#define FAVOR_ISA_H_

#include <string>
#include <vector>

namespace favor {

/// Names, in lower case, best first. The environment variable FAVOR_ISA takes one of
/// available_isas() and limits the kernels to it and what lies below it; it is read at the first
/// call of an operation, which throws favor::Error for an unknown or unsupported name.
std::vector<std::string> compiled_isas();
/// Compiled and supported by this CPU.
std::vector<std::string> available_isas();
/// The one in use, after FAVOR_ISA. Throws favor::Error as above.
std::string current_isa();

/// Whether this CPU multiplies bfloat16 itself. Libraries emulate it elsewhere, many times slower
/// than float32.
bool has_bfloat16_products();

/// Applies FAVOR_ISA once per process. The operations call this themselves.
void apply_isa_limit();

}  // namespace favor

#endif  // FAVOR_ISA_H_
