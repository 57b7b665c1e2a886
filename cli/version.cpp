// SPDX-License-Identifier: Apache-2.0
#include "cli/command.h"

namespace performer::cli {

std::string version() {
  return PERFORMER_VERSION;
}
std::string revision() {
  return PERFORMER_REVISION;
}

}  // namespace performer::cli
