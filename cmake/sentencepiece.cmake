# SPDX-License-Identifier: Apache-2.0
# SentencePiece has no CMake package: sentencepiece::sentencepiece is made of its header and its two
# libraries (use and training).
find_path(PERFORMER_SENTENCEPIECE_INCLUDE sentencepiece_trainer.h)
find_library(PERFORMER_SENTENCEPIECE_LIBRARY sentencepiece)
find_library(PERFORMER_SENTENCEPIECE_TRAIN_LIBRARY sentencepiece_train)
mark_as_advanced(PERFORMER_SENTENCEPIECE_INCLUDE PERFORMER_SENTENCEPIECE_LIBRARY
                 PERFORMER_SENTENCEPIECE_TRAIN_LIBRARY)
foreach(part INCLUDE LIBRARY TRAIN_LIBRARY)
  if(NOT PERFORMER_SENTENCEPIECE_${part})
    message(FATAL_ERROR "SentencePiece is missing (PERFORMER_SENTENCEPIECE_${part} is not found), "
                        "expected Debian's libsentencepiece-dev; scripts/setup installs it")
  endif()
endforeach()
add_library(sentencepiece::sentencepiece INTERFACE IMPORTED)
set_target_properties(sentencepiece::sentencepiece PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${PERFORMER_SENTENCEPIECE_INCLUDE}"
  INTERFACE_LINK_LIBRARIES
    "${PERFORMER_SENTENCEPIECE_TRAIN_LIBRARY};${PERFORMER_SENTENCEPIECE_LIBRARY}")
