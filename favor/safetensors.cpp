// SPDX-License-Identifier: Apache-2.0
#include "favor/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "favor/atomic_file.h"
#include "favor/check.h"
#include "favor/words.h"

namespace favor {
namespace {

static_assert(std::endian::native == std::endian::little,
              "tensors are stored as they lie in memory");

using Json = nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr const char* kMetadata = "__metadata__";

constexpr Word<StoredType> kTypes[] = {{StoredType::kF32, "F32"},   {StoredType::kF64, "F64"},
                                       {StoredType::kBF16, "BF16"}, {StoredType::kF16, "F16"},
                                       {StoredType::kI64, "I64"},   {StoredType::kI32, "I32"},
                                       {StoredType::kU8, "U8"},     {StoredType::kBool, "BOOL"}};

// Bytes of a tensor, or false where the product does not fit.
bool tensor_bytes(StoredType type, const std::vector<int64_t>& shape, uint64_t& bytes) {
  uint64_t product = static_cast<uint64_t>(bytes_per_element(type));
  bool empty = false;
  for (const int64_t size : shape) empty = empty || size == 0;
  for (const int64_t size : shape) {
    if (size < 0) return false;
    if (!empty && __builtin_mul_overflow(product, static_cast<uint64_t>(size), &product)) {
      return false;
    }
  }
  bytes = empty ? 0 : product;
  return true;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

class Mapping {
 public:
  explicit Mapping(const std::string& path) {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) fail(path, "cannot open: ", std::strerror(errno));
    struct stat status {};
    if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
      ::close(descriptor);
      fail(path, "not a regular file", "");
    }
    bytes_ = static_cast<size_t>(status.st_size);
    if (bytes_ > 0) {
      void* mapped = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, descriptor, 0);
      if (mapped == MAP_FAILED) {
        const int error = errno;
        ::close(descriptor);
        fail(path, "cannot map into memory: ", std::strerror(error));
      }
      data_ = static_cast<const char*>(mapped);
    }
    ::close(descriptor);
  }
  ~Mapping() {
    if (data_ != nullptr) ::munmap(const_cast<char*>(data_), bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::string_view content() const { return {data_, bytes_}; }

 private:
  [[noreturn]] static void fail(const std::string& path, const char* what, const char* why) {
    throw std::runtime_error(message(path, ": ", what, why));
  }

  const char* data_ = nullptr;
  size_t bytes_ = 0;
};

// Everything wrong with one file is reported as `file: ...`.
class HeaderParser {
 public:
  HeaderParser(const std::string& path, std::string_view content)
      : path_(path), content_(content) {}

  void parse(std::vector<StoredTensor>& tensors, std::map<std::string, std::string>& metadata) {
    check(content_.size() >= kLengthBytes, "safetensors file has ", content_.size(),
          " bytes, expected at least 8");
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, content_.data(), kLengthBytes);
    check(header_bytes <= kMaxHeaderBytes, "header length is ", header_bytes, ", expected at most ",
          kMaxHeaderBytes, " (not a safetensors file?)");
    check(header_bytes <= content_.size() - kLengthBytes, "header length is ", header_bytes,
          ", but only ", content_.size() - kLengthBytes, " bytes follow (cut file?)");
    const char* header = content_.data() + kLengthBytes;
    const Json json = parse_json(header, header + header_bytes);
    check(json.is_object(), "header is ", json.type_name(), ", expected object");
    data_ = header + header_bytes;
    data_bytes_ = content_.size() - kLengthBytes - header_bytes;
    for (const auto& [name, value] : json.items()) {
      if (name == kMetadata) {
        read_metadata(value, metadata);
      } else {
        read_tensor(name, value, tensors);
      }
    }
    check_coverage(tensors);
  }

 private:
  template <class... Args>
  void check(bool condition, const Args&... args) const {
    if (condition) return;
    std::string text = message(args...);
    // Names come from the file: no line break or terminal command in one may reach the screen.
    for (char& c : text) c = static_cast<unsigned char>(c) < ' ' || c == 0x7f ? '?' : c;
    throw std::runtime_error(path_ + ": " + text);
  }

  // The JSON library keeps the last of several equal keys; here they are an error.
  Json parse_json(const char* begin, const char* end) const {
    std::vector<std::set<std::string>> open;
    const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
      if (event == Json::parse_event_t::object_start) open.emplace_back();
      if (event == Json::parse_event_t::object_end) open.pop_back();
      if (event == Json::parse_event_t::key) {
        const auto& key = parsed.get_ref<const std::string&>();
        check(open.back().insert(key).second, "duplicate name '", key, "' in the header");
      }
      return true;
    };
    try {
      return Json::parse(begin, end, watch);
    } catch (const Json::exception& error) {
      check(false, "header is not valid JSON: ", error.what());
      throw;
    }
  }

  void read_metadata(const Json& value, std::map<std::string, std::string>& metadata) const {
    check(value.is_object(), "__metadata__ is ", value.type_name(), ", expected object");
    for (const auto& [key, text] : value.items()) {
      check(text.is_string(), "__metadata__ '", key, "' is ", text.type_name(),
            ", expected string");
      metadata[key] = text.get<std::string>();
    }
  }

  uint64_t unsigned_number(const std::string& name, const char* field, const Json& value) const {
    check(value.is_number_unsigned(), "tensor '", name, "': ", field, " holds ", value.type_name(),
          value.is_number() ? " below 0 or with a fraction" : "", ", expected whole numbers");
    return value.get<uint64_t>();
  }

  const Json& field(const std::string& name, const Json& value, const char* key) const {
    const auto found = value.find(key);
    check(found != value.end(), "tensor '", name, "' has no ", key);
    return *found;
  }

  void read_tensor(const std::string& name, const Json& value,
                   std::vector<StoredTensor>& tensors) const {
    check(value.is_object(), "tensor '", name, "' is ", value.type_name(), ", expected object");
    const Json& dtype = field(name, value, "dtype");
    const Json& shape = field(name, value, "shape");
    const Json& offsets = field(name, value, "data_offsets");
    check(value.size() == 3, "tensor '", name, "' has ", value.size(),
          " fields, expected dtype, shape, data_offsets");
    StoredTensor tensor;
    tensor.name = name;
    check(dtype.is_string(), "tensor '", name, "': dtype is ", dtype.type_name(),
          ", expected string");
    try {
      tensor.type = stored_type_from_string(dtype.get_ref<const std::string&>());
    } catch (const Error& error) {
      check(false, "tensor '", name, "': ", error.what());
    }
    check(shape.is_array(), "tensor '", name, "': shape is ", shape.type_name(),
          ", expected array");
    for (const Json& size : shape) {
      const uint64_t number = unsigned_number(name, "shape", size);
      check(number <= INT64_MAX, "tensor '", name, "': shape holds ", number, ", too large");
      tensor.shape.push_back(static_cast<int64_t>(number));
    }
    uint64_t expected = 0;
    check(tensor_bytes(tensor.type, tensor.shape, expected), "tensor '", name, "': shape ",
          shape_text(tensor.shape), " overflows");
    check(offsets.is_array() && offsets.size() == 2, "tensor '", name,
          "': data_offsets is no pair of numbers");
    const uint64_t begin = unsigned_number(name, "data_offsets", offsets[0]);
    const uint64_t end = unsigned_number(name, "data_offsets", offsets[1]);
    check(begin <= end && end <= data_bytes_, "tensor '", name, "': data_offsets are [", begin,
          ", ", end, "], expected ascending and at most ", data_bytes_, " (cut file?)");
    check(end - begin == expected, "tensor '", name, "' has ", end - begin, " bytes, expected ",
          expected, " (", to_string(tensor.type), ", shape ", shape_text(tensor.shape), ")");
    tensor.data = data_ + begin;
    tensor.bytes = expected;
    tensors.push_back(std::move(tensor));
  }

  // Tensors must follow one another without gap or overlap and fill the file.
  void check_coverage(std::vector<StoredTensor>& tensors) const {
    std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
      return std::tie(a.data, a.bytes, a.name) < std::tie(b.data, b.bytes, b.name);
    });
    uint64_t covered = 0;
    for (const StoredTensor& tensor : tensors) {
      const auto begin = static_cast<uint64_t>(static_cast<const char*>(tensor.data) - data_);
      check(begin == covered, "tensor '", tensor.name, "' starts at byte ", begin, ", expected ",
            covered, " (no gap, no overlap)");
      covered += tensor.bytes;
    }
    check(covered == data_bytes_, data_bytes_, " bytes of data, but the tensors cover ", covered);
  }

  const std::string& path_;
  std::string_view content_;
  const char* data_ = nullptr;
  uint64_t data_bytes_ = 0;
};

}  // namespace

std::string to_string(StoredType type) {
  return word_of(kTypes, type);
}

StoredType stored_type_from_string(std::string_view word) {
  return value_of(kTypes, word, "dtype");
}

int64_t bytes_per_element(StoredType type) {
  switch (type) {
    case StoredType::kF64:
    case StoredType::kI64:
      return 8;
    case StoredType::kF32:
    case StoredType::kI32:
      return 4;
    case StoredType::kBF16:
    case StoredType::kF16:
      return 2;
    case StoredType::kU8:
    case StoredType::kBool:
      return 1;
  }
  throw std::logic_error("bytes_per_element: no such type");
}

namespace {

/// All that precedes the data, whose order it sets.
std::string header_of(const std::vector<StoredTensor>& tensors,
                      const std::map<std::string, std::string>& metadata,
                      std::vector<const StoredTensor*>& ordered) {
  std::set<std::string_view> names;
  for (const StoredTensor& tensor : tensors) {
    FAVOR_CHECK(tensor.name != kMetadata, "write_safetensors: tensor name ", kMetadata,
                " is reserved");
    FAVOR_CHECK(names.insert(tensor.name).second, "write_safetensors: duplicate tensor name '",
                tensor.name, "'");
    uint64_t expected = 0;
    FAVOR_CHECK(tensor_bytes(tensor.type, tensor.shape, expected), "write_safetensors: tensor '",
                tensor.name, "' has shape ", shape_text(tensor.shape), ", expected sizes >= 0");
    FAVOR_CHECK(tensor.bytes == expected, "write_safetensors: tensor '", tensor.name, "' has ",
                tensor.bytes, " bytes, expected ", expected, " (", to_string(tensor.type),
                ", shape ", shape_text(tensor.shape), ")");
    ordered.push_back(&tensor);
  }
  // Wide elements first, so that all data is aligned to its element.
  std::sort(ordered.begin(), ordered.end(), [](const StoredTensor* a, const StoredTensor* b) {
    const int64_t a_bytes = bytes_per_element(a->type);
    const int64_t b_bytes = bytes_per_element(b->type);
    return a_bytes != b_bytes ? a_bytes > b_bytes : a->name < b->name;
  });
  Json header = Json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  uint64_t offset = 0;
  for (const StoredTensor* tensor : ordered) {
    header[tensor->name] = {{"dtype", to_string(tensor->type)},
                            {"shape", tensor->shape},
                            {"data_offsets", {offset, offset + tensor->bytes}}};
    offset += tensor->bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception& error) {
    throw Error(message("write_safetensors: name or metadata is not UTF-8: ", error.what()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t header_bytes = text.size();
  FAVOR_CHECK(header_bytes <= kMaxHeaderBytes, "write_safetensors: header has ", header_bytes,
              " bytes, expected at most ", kMaxHeaderBytes);
  return std::string(reinterpret_cast<const char*>(&header_bytes), kLengthBytes) + text;
}

}  // namespace

std::string safetensors_bytes(const std::vector<StoredTensor>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::vector<const StoredTensor*> ordered;
  std::string bytes = header_of(tensors, metadata, ordered);
  for (const StoredTensor* tensor : ordered) {
    bytes.append(static_cast<const char*>(tensor->data), tensor->bytes);
  }
  return bytes;
}

void write_safetensors(const std::string& path, const std::vector<StoredTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<const StoredTensor*> ordered;
  const std::string header = header_of(tensors, metadata, ordered);
  AtomicFile file(path);
  file.write(header.data(), header.size());
  for (const StoredTensor* tensor : ordered) file.write(tensor->data, tensor->bytes);
  file.commit();
}

struct SafetensorsFile::Parts {
  std::string path;
  std::optional<Mapping> mapping;
  std::vector<StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
  std::map<std::string, size_t, std::less<>> by_name;

  void parse(std::string_view content) {
    HeaderParser(path, content).parse(tensors, metadata);
    for (size_t i = 0; i < tensors.size(); ++i) by_name[tensors[i].name] = i;
  }
};

SafetensorsFile::SafetensorsFile(const std::string& path) : parts_(std::make_unique<Parts>()) {
  parts_->path = path;
  parts_->mapping.emplace(path);
  parts_->parse(parts_->mapping->content());
}

SafetensorsFile::SafetensorsFile(const std::string& name, std::string_view content)
    : parts_(std::make_unique<Parts>()) {
  parts_->path = name;
  parts_->parse(content);
}

SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

const std::vector<StoredTensor>& SafetensorsFile::tensors() const {
  return parts_->tensors;
}

const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return parts_->metadata;
}

bool SafetensorsFile::contains(std::string_view name) const {
  return parts_->by_name.find(name) != parts_->by_name.end();
}

const StoredTensor& SafetensorsFile::at(std::string_view name) const {
  const auto found = parts_->by_name.find(name);
  if (found == parts_->by_name.end()) {
    throw std::runtime_error(message(parts_->path, ": tensor '", name, "' is missing"));
  }
  return parts_->tensors[found->second];
}

}  // namespace favor
