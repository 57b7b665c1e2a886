// SPDX-License-Identifier: Apache-2.0
// `performer report`: runs side by side on one HTML page.
#include <cstdio>
#include <set>

#include "cli/command.h"
#include "favor/check.h"
#include "performer/report/page.h"

namespace performer::cli {

int run_report(const Command& command, const std::vector<std::string>& arguments) {
  std::vector<std::string> folders;
  std::string output;
  bool force = false;
  Options options(command);
  options.positional("RUN", folders, "folders of runs, one or several");
  options.add("-o,--output", output, "HTML file; `-` is standard output [RUN/report.html]");
  options.add("--force", force, "replace an existing file");
  if (!options.parse(arguments)) {
    std::fputs(options.help().c_str(), stdout);
    return 0;
  }
  if (folders.empty()) {
    throw UsageError(
        "report: RUN is missing, expected the folder of a run (performer report "
        "--help lists the options)");
  }
  if (output.empty()) {
    if (folders.size() > 1) {
      throw UsageError("report: --output is missing, expected a file (of several runs)");
    }
    output = folders.front() + "/report.html";
  }
  std::set<std::string> seen;
  std::vector<RunRecord> runs;
  for (const std::string& folder : folders) {
    runs.push_back(read_run_record(folder));
    if (!seen.insert(runs.back().name).second) {
      throw UsageError(favor::message("report: ", folder, " is given twice, expected once"));
    }
  }
  check_writable(output, force);
  write_result(output, report_page(runs, "performer " + version() + " (" + revision() + ")"),
               force);
  if (output != "-") std::fprintf(stderr, "report: %s\n", output.c_str());
  return 0;
}

}  // namespace performer::cli
