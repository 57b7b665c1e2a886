// SPDX-License-Identifier: Apache-2.0
// Runs side by side as one HTML page that needs no other file: curves, final table, differences of
// configuration, pictures.
#ifndef PERFORMER_REPORT_PAGE_H_
#define PERFORMER_REPORT_PAGE_H_

#include <string>
#include <vector>

#include "performer/report/run_record.h"

namespace performer {

/// `footer` is one line of plain text: who made the page. Throws std::runtime_error naming a
/// picture that cannot be read.
std::string report_page(const std::vector<RunRecord>& runs, const std::string& footer);

/// Base64 with padding.
std::string base64(const std::string& bytes);

}  // namespace performer

#endif  // PERFORMER_REPORT_PAGE_H_
