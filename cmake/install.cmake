# What `cmake --install` puts where: the kernels with their headers and CMake package, and with
# torch the command line and the operator library that Python loads.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/performer)
install(TARGETS favor EXPORT performerTargets FILE_SET HEADERS)
install(EXPORT performerTargets NAMESPACE performer:: DESTINATION ${package_dir})
configure_package_config_file(
  cmake/performer-config.cmake.in ${PROJECT_BINARY_DIR}/performer-config.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/performer-config-version.cmake COMPATIBILITY SameMinorVersion)
install(
  FILES ${PROJECT_BINARY_DIR}/performer-config.cmake
        ${PROJECT_BINARY_DIR}/performer-config-version.cmake
  DESTINATION ${package_dir})

# A Highway that was built for this project goes where the package looks for it first.
cmake_path(IS_PREFIX PROJECT_SOURCE_DIR "${hwy_DIR}" NORMALIZE performer_owns_highway)
if(performer_owns_highway)
  install(DIRECTORY "${hwy_DIR}/../../" DESTINATION lib PATTERN pkgconfig EXCLUDE)
endif()

# The installed programs find torch where the build found it.
if(TARGET performer)
  set_target_properties(performer performer_ops PROPERTIES
    INSTALL_RPATH "$<TARGET_FILE_DIR:torch::cpu>")
  install(TARGETS performer performer_ops)
endif()
