// SPDX-License-Identifier: Apache-2.0
// TensorBoard's event files: scalars by step, in the record format of TensorFlow. No torch here.
#ifndef PERFORMER_TRAIN_EVENT_FILE_H_
#define PERFORMER_TRAIN_EVENT_FILE_H_

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace performer {

/// A name, grouped by what stands before its first slash, and a value.
using Scalar = std::pair<std::string, double>;

/// CRC-32C (Castagnoli), the checksum of each record.
uint32_t crc32c(std::string_view bytes);

/// One record: length, checksum of the length, data, checksum of the data.
std::string event_record(std::string_view data);

/// A new file `events.out.tfevents.<seconds>.<host>.<process>.<number>` in a folder, which
/// TensorBoard reads together with those of earlier processes. All failures are std::runtime_error
/// naming the file.
class EventFile {
 public:
  /// TensorBoard drops what earlier files of the folder hold at `first_step` and later: a run that
  /// was resumed writes it again. `wall_time` is in seconds since 1970.
  EventFile(const std::string& folder, int64_t first_step, double wall_time);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// Values are stored as float; those that are not finite as they are. Written through at once.
  void write(int64_t step, const std::vector<Scalar>& scalars, double wall_time);
  const std::string& path() const { return path_; }

 private:
  void append(const std::string& event);

  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace performer

#endif  // PERFORMER_TRAIN_EVENT_FILE_H_
