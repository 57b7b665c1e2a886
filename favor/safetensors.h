// SPDX-License-Identifier: Apache-2.0
// The safetensors format: eight bytes of header length, a JSON header, raw little-endian data.
#ifndef FAVOR_SAFETENSORS_H_
#define FAVOR_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace favor {

enum class StoredType { kF32, kF64, kBF16, kF16, kI64, kI32, kU8, kBool };

/// The format's words: `F32`, `F64`, `BF16`, `F16`, `I64`, `I32`, `U8`, `BOOL`.
std::string to_string(StoredType type);
/// Throws Error, listing the known words.
StoredType stored_type_from_string(std::string_view word);
int64_t bytes_per_element(StoredType type);

/// A tensor in memory, contiguous in row-major order. Does not own its data.
struct StoredTensor {
  std::string name;
  StoredType type = StoredType::kF32;
  std::vector<int64_t> shape;  ///< empty for a scalar
  const void* data = nullptr;  ///< read from a file: may be unaligned, so copy it with memcpy
  size_t bytes = 0;            ///< product of shape times the element's size
};

/// Writes the file atomically: temporary name in the same folder, sync, rename, sync of the folder.
/// Same tensors and metadata, same bytes, whatever their order. Throws Error for duplicate
/// or reserved names, negative sizes or `bytes` that do not fit the shape; std::runtime_error when
/// the file cannot be written.
void write_safetensors(const std::string& path, const std::vector<StoredTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// The bytes that write_safetensors would write. Throws favor::Error as it does.
std::string safetensors_bytes(const std::vector<StoredTensor>& tensors,
                              const std::map<std::string, std::string>& metadata = {});

/// A memory-mapped file, wholly validated at construction. Throws std::runtime_error reading
/// `file: what is wrong`. Copies of the views stay valid only as long as this object.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  /// The content of such a file, which the caller keeps alive; errors call it `name`.
  SafetensorsFile(const std::string& name, std::string_view content);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  /// In the order of their data.
  const std::vector<StoredTensor>& tensors() const;
  const std::map<std::string, std::string>& metadata() const;
  bool contains(std::string_view name) const;
  /// Throws std::runtime_error naming file and tensor when it is missing.
  const StoredTensor& at(std::string_view name) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace favor

#endif  // FAVOR_SAFETENSORS_H_
