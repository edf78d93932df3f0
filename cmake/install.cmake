# SPDX-License-Identifier: Apache-2.0
#
# What `cmake --install` adds to the targets' own rules: pkg-config and CMake package files, and man pages.
include(CMakePackageConfigHelpers)

# quire.pc finds its prefix from its own place, so that `cmake --install --prefix` needs no configuration.
file(RELATIVE_PATH pc_to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(${CMAKE_CURRENT_LIST_DIR}/quire.pc.in quire.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/quire.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Quire)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/QuireConfig.cmake.in QuireConfig.cmake
  INSTALL_DESTINATION ${package} NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(QuireConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/QuireConfig.cmake ${CMAKE_BINARY_DIR}/QuireConfigVersion.cmake DESTINATION ${package})
install(EXPORT QuireTargets NAMESPACE quire:: DESTINATION ${package})

file(GLOB manuals CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/docs/man/*.[1-8])
foreach(manual ${manuals})
  string(REGEX MATCH "[1-8]$" section ${manual})
  install(FILES ${manual} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section})
endforeach()
