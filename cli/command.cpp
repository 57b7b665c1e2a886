// SPDX-License-Identifier: Apache-2.0
#include "cli/command.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "favor/check.h"
#include "favor/isa.h"
#include "performer/data/atomic_file.h"
#include "performer/train/metrics.h"

namespace performer::cli {
namespace {

namespace fs = std::filesystem;
using favor::message;

double seconds(const timeval& time) {
  return double(time.tv_sec) + 1e-6 * double(time.tv_usec);
}

std::string shown_name(const CLI::Option& option) {
  if (option.get_positional()) return option.get_name(true);
  std::string name;
  for (const std::string& letter : option.get_snames()) name += "-" + letter + ", ";
  // The first long name; the others are spellings with underscores and the negation.
  const std::string& first = option.get_lnames().front();
  const std::vector<std::string>& negations = option.get_fnames();
  const bool negated =
      std::find(negations.begin(), negations.end(), "no-" + first) != negations.end();
  return name + (negated ? "--[no-]" : "--") + first;
}

// Quotes what a shell would split, so that the line can be run again.
std::string quoted(const std::string& word) {
  const bool plain = !word.empty() && word.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789-_=+./,:@%") == std::string::npos;
  if (plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace

Options::Options(const Command& command) : command_(command) {
  app_.set_help_flag();
  app_.allow_extras();
  app_.add_flag("-h,--help", help_wanted_, "this text")->group("General");
}

template <class T>
void Options::add_number(const std::string& names, T& value, const std::string& help,
                         const std::string& type, const std::string& text) {
  const std::string name = names.substr(names.find("--"));
  app_.add_option_function<std::string>(
          names, [&value, name](const std::string& given) { parse_value(name, given, value); },
          help)
      ->type_name(type)
      ->default_str(text);
}

void Options::add(const std::string& names, int64_t& value, const std::string& help) {
  add_number(names, value, help, "INT", std::to_string(value));
}

void Options::add(const std::string& names, uint64_t& value, const std::string& help) {
  add_number(names, value, help, "INT", std::to_string(value));
}

void Options::add(const std::string& names, double& value, const std::string& help) {
  add_number(names, value, help, "FLOAT", value_text(value));
}

void Options::add(const std::string& names, std::string& value, const std::string& help) {
  app_.add_option(names, value, help)->type_name("TEXT")->default_str(value);
}

void Options::add(const std::string& names, bool& value, const std::string& help) {
  app_.add_flag(names, value, help);
}

void Options::positional(const std::string& name, std::string& value, const std::string& help) {
  app_.add_option(name, value, help);
}

void Options::positional(const std::string& name, std::vector<std::string>& values,
                         const std::string& help) {
  app_.add_option(name, values, help);
}

bool Options::parse(const std::vector<std::string>& arguments) {
  const std::string hint = message(" (performer ", command_.name, " --help lists the options)");
  try {
    app_.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ArgumentMismatch& error) {
    throw UsageError(message(command_.name, ": ", mismatch(error.what()), hint));
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    if (const size_t end = text.find('\n'); end != std::string::npos) text.resize(end);
    throw UsageError(message(command_.name, ": ", text, hint));
  } catch (const favor::Error& error) {
    throw UsageError(message(command_.name, ": ", error.what(), hint));
  }
  const std::vector<std::string> extras = app_.remaining();
  if (!extras.empty() && !help_wanted_) {
    const std::string word = extras.front().substr(0, extras.front().find('='));
    if (!word.starts_with("-")) {
      throw UsageError(message(command_.name, ": unexpected argument '", word, "'", hint));
    }
    std::vector<std::string> names;
    for (const CLI::Option* option : app_.get_options()) {
      if (!option->get_positional()) names.push_back("--" + option->get_lnames().front());
    }
    throw UsageError(message(command_.name, ": unknown option ", word, ", did you mean ",
                             nearest_name(word, names), "?", hint));
  }
  return !help_wanted_;
}

// CLI11 opens its text with the option's name; the rest is said in the words of all messages.
std::string Options::mismatch(const std::string& text) const {
  const std::string name = text.substr(0, text.find(':'));
  const CLI::Option* option = app_.get_option_no_throw(name);
  if (option == nullptr) return text;
  if (option->count() > 1) {
    return message(name, " is given ", option->count(), " times, expected once");
  }
  return message(name, " is given without a value, expected ", option->get_type_name());
}

std::string Options::help() const {
  std::string text = message("performer ", command_.name, ": ", command_.summary,
                             "\n\nExample: ", command_.example, "\n");
  std::vector<std::string> groups;
  for (const CLI::Option* option : app_.get_options()) {
    const std::string group = option->get_group();
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  }
  for (const std::string& group : groups) {
    text += "\n" + group + ":\n";
    for (const CLI::Option* option : app_.get_options()) {
      if (option->get_group() != group) continue;
      const bool is_switch = option->get_expected_max() == 0 || option->get_type_size() == 0;
      std::string left = "  " + shown_name(*option);
      if (!is_switch && !option->get_positional()) left += " " + option->get_type_name();
      constexpr size_t kColumn = 34;
      if (left.size() + 2 > kColumn) {
        text += left + "\n" + std::string(kColumn, ' ');
      } else {
        text += left + std::string(kColumn - left.size(), ' ');
      }
      text += option->get_description();
      if (!option->get_default_str().empty()) text += " [" + option->get_default_str() + "]";
      text += "\n";
    }
  }
  return text;
}

void warn_if_emulated(const std::string& dtype) {
  if (dtype != "bfloat16" || favor::has_bfloat16_products()) return;
  std::fputs(
      "warning: this CPU has no bfloat16 products: bfloat16 is emulated and many times "
      "slower than float32\n",
      stderr);
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

RunReport::RunReport(const Command& command, const std::vector<std::string>& arguments, bool quiet)
    : command_line_(message("performer ", command.name)),
      quiet_(quiet),
      start_(std::chrono::steady_clock::now()) {
  for (const std::string& argument : arguments) command_line_ += " " + quoted(argument);
  if (!quiet_) {
    std::fprintf(stderr, "performer %s (%s): %s\n", version().c_str(), revision().c_str(),
                 command_line_.c_str());
  }
}

nlohmann::json RunReport::resources() const {
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start_;
  return {{"wall_s", wall.count()},
          {"cpu_s", cpu_seconds()},
          {"peak_memory_bytes", peak_memory_bytes()}};
}

nlohmann::json RunReport::provenance() const {
  return {{"version", version()}, {"revision", revision()}, {"command_line", command_line_}};
}

void RunReport::finish() const {
  if (quiet_) return;
  const nlohmann::json used = resources();
  std::fprintf(stderr, "done: wall %.1f s, CPU %.1f s, peak memory %.0f MB\n",
               used["wall_s"].get<double>(), used["cpu_s"].get<double>(),
               used["peak_memory_bytes"].get<double>() / 1e6);
}

void check_writable(const std::string& path, bool force) {
  if (path.empty() || path == "-") return;
  if (fs::is_directory(path)) {
    throw std::runtime_error(message("--output: ", path, " is a folder, expected a file"));
  }
  if (fs::exists(path) && !force) {
    throw std::runtime_error(
        message("--output: ", path, " exists, expected a new file (--force replaces it)"));
  }
  const fs::path parent = fs::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    throw std::runtime_error(
        message("--output: ", path, " cannot be written: ", folder, ": ", std::strerror(errno)));
  }
}

void write_result(const std::string& path, const std::string& content, bool force) {
  if (path.empty() || path == "-") {
    if (std::fwrite(content.data(), 1, content.size(), stdout) != content.size() ||
        std::fflush(stdout) != 0) {
      throw std::runtime_error(
          message("standard output: cannot be written: ", std::strerror(errno)));
    }
    return;
  }
  check_writable(path, force);
  write_file_atomically(path, content);
}

}  // namespace performer::cli
