// Follow the reader's system unless they chose: the theme logs an error on every page where no mode is set, and its own
// option default_mode leaves pages without colours where scripts are off.
document.documentElement.dataset.mode ||= "auto";
