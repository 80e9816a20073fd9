// Follow the reader's system unless they chose: the theme logs an error on every page without a mode, and its own
// option default_mode leaves pages without colours if scripts are off.
document.documentElement.dataset.mode ||= "auto";
